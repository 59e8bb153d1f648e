"""Paths are from the root once a config has been composed, and a folder named by the time is one process's."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, CommandLine
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import aiayn
from aiayn.files import new_folder
from aiayn.paths import make_absolute
from aiayn.resolvers import run_folder
from aiayn.schema import check_published


def config(*overrides: str) -> DictConfig:
    """As Hydra hands it to the task, with nothing resolved."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=list(overrides))
    make_absolute(cfg)
    return cfg


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        *((["data=text", f"{key}=PATH"], key) for key in ("data.train.source", "data.dev.target", "data.test.source")),
        *((["data=multi30k_ende", "data.path=PATH"], key) for key in ("data.path", "data.corpus.path")),
        (["data=text", "data.train={source: PATH, target: x}"], "data.corpus.train.source"),
        *((["data=treebank", "data.trees.dev=PATH"], key) for key in ("data.trees.dev", "data.corpus.files.dev")),
        (["data=treebank", "data.path=PATH"], "data.corpus.path"),
        *(([f"{key}=PATH"], key) for key in ("outputs", "corpora", "run_dir")),
        *((["task=translate", f"{key}=PATH"], key) for key in ("checkpoint", "input", "output")),
        *((["task=score", f"{key}=PATH"], key) for key in ("hypotheses", "references", "output")),
        *((["task=compare", "a=x", "b=x", f"{key}=PATH"], key) for key in ("a", "b", "output")),
        *((["task=rescore", f"{key}=PATH"], key) for key in ("source", "target")),
        (["task=average", "run=PATH"], "run"),
        (["task=report", "folder=PATH"], "folder"),
        (["task=plan", "plan.output=PATH"], "plan.output"),
    ],
)
def test_every_path_is_from_the_root_and_a_tilde_is_home(overrides: list[str], key: str, home: Path) -> None:
    for given, meant in (("a/b", Path("a/b").absolute()), ("'~/a'", home / "a"), ("/a", Path("/a"))):
        cfg = config(*(override.replace("PATH", given) for override in overrides))
        assert OmegaConf.select(cfg, key) == str(meant)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bleu: 41.0", "published.bleu is no key of it; there are paper, system, metric, with, without, seeds"),
        ("paper: x, metric: bleu", "published.with is missing"),
        ("paper: x, metric: bleu, with: much", "published.with must be a number, got much"),
        ("paper: x, metric: bleu, with: 1, seeds: some", "published.seeds must be a number, got some"),
    ],
)
def test_what_others_report_is_said_in_full(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_published(OmegaConf.create(f"{{{given}}}"))
    check_published({})
    check_published({"paper": "x", "metric": "bleu", "with": 1, "without": None})


def test_lists_of_paths_are_from_the_root(home: Path) -> None:
    assert config("data=text", "data.train.source=[a,'~/b']").data.corpus.train.source == [
        str(Path("a").absolute()),
        str(home / "b"),
    ]
    trees = [str(Path("a").absolute()), str(home / "b")]
    assert config("data=treebank", "data.trees.train=[a,'~/b']").data.corpus.files.train == trees
    assert config("task=translate", "checkpoint=[a,5]").checkpoint == [str(Path(name).absolute()) for name in "a5"]


def test_what_is_no_path_stays() -> None:
    assert config("task=compare", "a=x", "b=y").a_checkpoint == "averaged"
    assert config("task=attention", "checkpoint=x", "sentence=y", "target=z").target == "z"
    assert config("task=translate", "checkpoint=x").input is None


def test_variables_for_folders_may_begin_with_a_tilde(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIAYN_OUTPUTS", "~/outs")
    monkeypatch.setenv("AIAYN_DATA", "~/data")
    cfg = config("data=multi30k_ende")
    assert (cfg.outputs, cfg.data.corpus.path) == (str(home / "outs"), str(home / "data" / "multi30k"))
    assert cfg.run_dir.startswith(str(home / "outs" / "runs"))


def test_a_home_that_does_not_exist_is_said() -> None:
    with pytest.raises(ValueError, match="~nobody-of-that-name/x begins with ~, but there is no such home"):
        config("task=report", "folder='~nobody-of-that-name/x'")


def test_a_notebook_may_begin_with_a_tilde(home: Path) -> None:
    with pytest.raises(ValueError, match=f"{home}/run does not exist"):
        aiayn.load("~/run")


def test_a_folder_named_by_the_time_is_for_one_process_alone(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "2017-06-12_10-00-00"
    with ThreadPoolExecutor(7) as pool:
        made = list(pool.map(lambda _: new_folder(place), range(7)))
    assert len(set(made)) == 7
    assert all(path.is_dir() for path in made)
    run_folder.cache_clear()
    again = run_folder(str(place), place.name, ".hydra")
    assert again == f"{place}-8"
    assert run_folder(str(place), place.name, ".hydra") == again  # Hydra and Lightning ask again
    for given in ("outputs/mine", place):  # one that was named resumes
        assert run_folder(str(given), "2017-06-12_10-00-01", ".hydra") == str(Path(given).absolute())


def test_a_file_of_ones_own_adds_keys_and_the_command_line_still_knows_a_mistyped_one(
    tmp_path: Path, in_process: CommandLine
) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    file = tmp_path / "conf" / "model" / "mine.yaml"
    file.write_text("defaults: [tiny, _self_]\nname: mine\nwindow: 5\n")
    ask = ("--config-dir", str(tmp_path / "conf"), "--cfg", "job", "--package", "model", "model=mine", "training=tiny")
    assert "\nwindow: 5\n" in in_process(*ask).stdout
    assert "there is no key model.windows; did you mean model.window?" in in_process(*ask, "model.windows=7").stderr
    file.write_text("defaults: [tiny, _self_]\nlayers: eight\n")
    assert "model.layers: Value 'eight'" in in_process(*ask).stderr
