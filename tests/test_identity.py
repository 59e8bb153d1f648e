"""What makes another experiment: one answer for resumes, done runs, rows of sweeps and of reports, and folders."""

import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, composed
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from aiayn import files
from aiayn import identity as identity_of_runs
from aiayn.identity import changed, differing, identity, made_of, module_of, settings
from aiayn.report.notes import notes
from aiayn.report.rows import rows_of
from aiayn.runs.run import Run
from aiayn.runs.run_folder import RunFolder
from aiayn.runs.sweep import Progress, show
from aiayn.trust import check_corpus
from hydra_plugins.aiayn_launcher.jobs import is_done, is_passed_over

BASE = ["trainer=cpu", "trainer.precision=32-true"]
row = partial(identity_of_runs.row, objective="bleu")
WHERE_OR_HOW = [
    *("trainer.devices=3", "trainer=ddp_cpu", "trainer.accelerator=gpu", "+trainer.profiler=simple"),
    *(
        "logger=tensorboard",
        "metrics=[bleu]",
        "+metrics.ter.case_sensitive=true",
        "paper.bleu=3",
        "launcher.parallel=3",
    ),
    *("callbacks.quality.samples=3", "callbacks.speed.log_steps=3", "training.log_steps=7"),
    "callbacks.best.weights_only=false",
    *("data.tokens_per_device=300", "data.loader_workers=2", "data.prepare_workers=2", "data.path=/elsewhere"),
    *("inference.tokens_per_batch=99", "data.split=dev"),
    *("outputs=/elsewhere", "corpora=/elsewhere", "run_dir=/elsewhere", "force=true"),
]
ANOTHER = [
    *(
        "+trainer.gradient_clip_val=0.01",
        "trainer.precision=bf16-mixed",
        "trainer.compile=true",
        "+trainer.limit_train_batches=7",
    ),
    *("callbacks=ema", "+callbacks.mine={_target_: mine.Callback}", "+my.key=3", "name=other"),
    *("model.d_ff=64", "model/position=learned", "model.dropout=0", "data.vocab_size=300", "data.corpus.pairs=70"),
    *(
        "data.byte_fallback=true",
        "data.shared_vocabulary=false",
        "data.tokenizer=/a.model",
        "data.cleaning.max_ratio=null",
        "training.label_smoothing=0",
    ),
    *("training.warmup_steps=7", "training.keep_checkpoints=2", "training.validate_steps=77"),
    *("inference.beam=1", "inference=greedy", "+metrics.bleu.own=3"),
    "objective=chrf",
]


@cache
def base() -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=BASE)


def config(*overrides: str) -> dict[str, Any]:
    """The resolved config of a command line; where it chooses no file of conf/, without composing all again."""
    keys = [override.lstrip("+").partition("=")[::2] for override in overrides]
    if any((ROOT / "conf" / key).is_dir() for key, _ in keys):
        return OmegaConf.to_container(composed(*BASE, *overrides))  # type: ignore[return-value]
    cfg = base().copy()
    for key, value in keys:
        OmegaConf.update(cfg, key, yaml.safe_load(value), force_add=True)
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


def left(path: Path, config: dict[str, Any], *, status: str, **result: Any) -> Path:
    """The folder of a run that has begun."""
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints" / "step_0000007.ckpt").touch()
    content = {"status": status, "config": config, "precision": config["trainer"]["precision"], **result}
    (path / "result.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("override", "same"), [*((key, True) for key in WHERE_OR_HOW), *((key, False) for key in ANOTHER)]
)
def test_it_is_the_same_experiment_everywhere_or_nowhere(override: str, same: bool, tmp_path: Path) -> None:
    before, now = config(), config(override)
    answers = {"name of its row": row([*BASE, override]) == row(BASE)}
    for status in ("running", "done"):
        folder = left(tmp_path / status, before, status=status, steps=before["training"]["max_steps"])
        try:
            answers[f"goes on where it is {status}"] = RunFolder(folder, now).done == (status == "done")
        except ValueError:
            answers[f"goes on where it is {status}"] = False
    answers["done in a sweep"] = is_done(Run.read(folder, row="x", config=now))
    seeds = [Run(folder, "x", before), Run(folder, "y", {**now, "seed": 2})]
    answers["a row of a report"] = len(rows_of(seeds)) == 1
    assert set(answers.values()) == {same}, answers


def test_a_run_may_get_another_end_and_is_then_another_row(tmp_path: Path) -> None:
    before, now = config(), config("training.max_steps=9999")
    folder = left(tmp_path / "run", before, status="done", steps=before["training"]["max_steps"])
    assert not RunFolder(folder, now).done
    assert not is_done(Run.read(folder, row="x", config=now))
    assert len(rows_of([Run(folder, "x", before), Run(folder, "y", {**now, "seed": 2})])) == 2
    assert row(["training.max_steps=9999"]) != row([])


def test_a_long_name_of_a_folder_begins_with_what_sweeps_vary_and_does_not_depend_on_the_sweep() -> None:
    many = [f"data.corpus.{key}=7" for key in ("dev", "test", "pairs", "digits", "words")]
    one = row([*many, "seed=2", "model.heads=4", "experiment=table3_base"])
    assert one.startswith("table3_base,seed=2,model.heads=4,data.corpus.dev=7,")
    assert len(one) == 99
    assert one == row(["model.heads=4", "experiment=table3_base", *reversed(many), "seed=2"])
    assert one[-8:] != row([*many, "seed=3", "model.heads=4", "experiment=table3_base"])[-8:]


@pytest.mark.parametrize("task", ["plan", "status", "report", "dashboard"])
def test_a_task_that_looks_at_a_sweep_plans_the_very_runs_of_it(task: str) -> None:
    assert differing(config(f"task={task}"), config()) == []


def test_clipped_averaged_and_plain_runs_are_three_rows() -> None:
    made = [config(), config("callbacks=ema", "seed=2"), config("+trainer.gradient_clip_val=0.01", "seed=3")]
    rows = rows_of([Run(Path(), name, found) for name, found in zip("abc", made, strict=True)])
    assert [len(row.runs) for row in rows] == [1, 1, 1]


def test_early_stopping_looks_at_the_objective_alone() -> None:
    early = config("callbacks=early_stopping")
    assert differing(early, config("callbacks=early_stopping", "metrics=[bleu]")) == []
    assert "metrics.bleu.tokenize" in differing(early, config("callbacks=early_stopping", "metrics.bleu.tokenize=char"))


def test_runs_on_other_text_are_other_rows() -> None:
    texts = ["1", "1", "2", None]
    results = [{"made_of": {"text": text} if text else {}} for text in texts]
    runs = [Run(Path(), "x", config(f"seed={seed}"), result) for seed, result in enumerate(results)]
    assert [[run.config["seed"] for run in row.runs] for row in rows_of(runs)] == [[0, 1, 3], [2]]


def test_a_switch_that_is_off_is_one_that_an_older_run_did_not_have() -> None:
    assert not differing({"model": {"layers": 2, "new": False, "newer": None}}, {"model": {"layers": 2}})
    assert differing({"model": {"layers": 2, "new": True}}, {"model": {"layers": 2}}) == ["model.new"]
    assert differing({"model": {"rate": 0}}, {"model": {}}) == ["model.rate"]


def test_a_run_that_is_older_than_the_key_shared_its_vocabulary(tmp_path: Path) -> None:
    older = config()
    del older["data"]["shared_vocabulary"]
    assert not differing(config(), older)
    folder = left(tmp_path / "run", older, status="running")
    with pytest.raises(ValueError, match=r"holds a run with data\.shared_vocabulary=True, not False; choose another"):
        RunFolder(folder, config("data.shared_vocabulary=false"))


def test_a_table_says_once_what_parts_repeat() -> None:
    found = settings(config("data=text", "data.train.source=a", "data.train.target=b"))
    assert found["model.heads"] == 4
    assert found["data.train.source"] == "a"
    assert not {"model.attention.heads", "model.kv_heads", "model.encoder_layers"} & set(found)
    assert settings(config("model.kv_heads=2"))["model.kv_heads"] == 2
    assert found["training.label_smoothing"] == 0.1
    assert not found.keys() & {"training.loss.label_smoothing", "training.optimizer.eps", "training.schedule.d_model"}
    assert "data.corpus.train.source" not in found
    assert "seed" not in found
    assert "seed" in identity(config())


@pytest.mark.parametrize(
    ("given", "used", "asked", "fits"),
    [
        ("auto", "32-true", "32-true", True),
        ("auto", "32-true", "auto", True),
        ("32-true", "32-true", "auto", True),  # what auto is here shows when the devices are known
        ("auto", "bf16-mixed", "32-true", False),
        ("bf16-mixed", "bf16-mixed", "32-true", False),
    ],
)
def test_a_resume_compares_the_precision_that_was_used(
    given: str, used: str, asked: str, fits: bool, tmp_path: Path
) -> None:
    folder = left(tmp_path / "run", config(f"trainer.precision={given}"), status="running")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "precision": used}))
    mine = config(f"trainer.precision={asked}")
    if fits:
        RunFolder(folder, mine).check_resumable(result["config"], 7, {"precision": used})
        with pytest.raises(ValueError, match=rf"started with trainer\.precision={used}, not 16-mixed"):
            RunFolder(folder, mine).check_resumable(result["config"], 7, {"precision": "16-mixed"})
    else:
        with pytest.raises(ValueError, match=rf"trainer\.precision={given}, not 32-true"):
            RunFolder(folder, mine)


def text_config(folder: Path) -> dict[str, Any]:
    """A run on text files of its own."""
    for split in ("train", "dev"):
        for side in ("en", "de"):
            (folder / f"{split}.{side}").write_text(f"a {split}\nb\n")
    sides = [
        f"data.{split}.{side}={folder}/{split}.{language}"
        for split in ("train", "dev")
        for side, language in (("source", "en"), ("target", "de"))
    ]
    return config("data=text", *sides)


def test_other_text_shows_and_is_read_once_for_all_rows(tmp_path: Path) -> None:
    made = text_config(tmp_path)
    result = {"config": made, "made_of": made_of(made, own=True)}
    misses = files._digest.cache_info().misses
    assert [changed(result, own=own) for own in (True, False) * 10] == [[]] * 20
    assert files._digest.cache_info().misses == misses
    (tmp_path / "dev.de").write_text("b dev\nb\n")
    assert changed(result, own=True) == ["text"]
    (tmp_path / "dev.de").unlink()  # there is nothing to compare with
    assert changed(result, own=True) == []


def test_code_is_that_of_our_stages_and_of_the_modules_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("__init__", "attention", "unnamed"):
        (tmp_path / "mine" / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    made = config("model.attention._target_=mine.attention.Own", "+callbacks.speed.own={_target_: mine.unnamed.Bar}")
    result = {"config": made, "made_of": made_of(made, own=True)}
    assert set(result["made_of"]) > {"text", "aiayn.model", "aiayn.training", "mine.attention"}
    assert not any(name.startswith(("mine.unnamed", "aiayn.model.")) for name in result["made_of"])
    assert changed(result, own=True) == []
    (tmp_path / "mine" / "attention.py").write_text("raise RuntimeError('changed')\n")
    assert changed(result, own=True) == ["mine.attention"]
    assert "mine" not in sys.modules
    assert changed({"config": made, "made_of": {**result["made_of"], "aiayn.training": "0"}}, own=True) == [
        "aiayn.training",
        "mine.attention",
    ]


def test_another_checkpoint_under_the_name_shows(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "averaged.ckpt").write_text("weights")
    (tmp_path / "other.ckpt").write_text("weights")
    made = {"checkpoint": f"{tmp_path}/run,{tmp_path}/other.ckpt"}
    result = {"config": made, "made_of": made_of(made, own=False)}
    assert changed(result, own=False) == []
    (tmp_path / "run" / "checkpoints" / "averaged.ckpt").write_text("longer training")
    assert changed(result, own=False) == ["checkpoint"]


def test_a_path_with_a_comma_in_it_is_one_path(tmp_path: Path) -> None:
    row_of_a_sweep, other = tmp_path / "model.heads=2,seed=3" / "last.ckpt", tmp_path / "seed=3,5.ckpt"
    row_of_a_sweep.parent.mkdir()
    for file in (row_of_a_sweep, other):
        file.write_text("weights")
    configs = [{"checkpoint": f"{row_of_a_sweep},{other}"}, {"training": {"initialize": str(row_of_a_sweep)}}]
    results = [{"config": config, "made_of": made_of(config, own=False)} for config in configs]
    row_of_a_sweep.write_text("longer training")
    assert [changed(result, own=False) for result in results] == [["checkpoint"], ["initialize"]]


@pytest.mark.parametrize(("group", "key"), [("training", "initialize"), ("data", "tokenizer")])
def test_another_run_under_the_name_that_it_begins_with_shows(group: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.model"
    path.write_text("pieces")
    result = {"config": (made := {group: {key: str(path)}}), "made_of": made_of(made, own=False)}
    assert changed(result, own=False) == []
    path.write_text("others")
    assert changed(result, own=False) == [key]


@pytest.mark.parametrize(
    "corpus",
    [
        {"_target_": "mine.Corpus"},
        {"_target_": "aiayn.data.parallel_text.Path.rmdir", "_args_": ["PLACE"]},
        {"_target_": "aiayn.data.corpora.text.TextFiles", "train": {"_target_": "os.rmdir", "path": "PLACE"}},
        {"_target_": "aiayn.data.corpora.text.TextFiles", "train": {"source": "${oc.env:HOME}", "target": "x"}},
        {"_target_": "aiayn.data.corpora.text.TextFiles", "train": {"source": 3, "target": [None]}},
        {"_target_": 5},
        {"_target_": ["aiayn.data.corpora.numbers.Numbers"]},
        "text",
        None,
    ],
)
def test_a_config_from_a_folder_runs_no_code_of_its_own(corpus: Any, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    corpus = json.loads(json.dumps(corpus).replace("PLACE", str(place)))
    assert "text" not in made_of({"data": {"corpus": corpus}}, own=False)
    assert place.exists()


def test_a_corpus_of_conf_is_one_that_a_finished_run_may_name() -> None:
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "data").glob("*.yaml")]
    found = {file["corpus"]["_target_"] for file in files if "_target_" in file.get("corpus", {})}
    assert len(found) == 6
    for target in found:
        check_corpus({"_target_": target}, trust=())


@pytest.mark.parametrize("result", [{}, {"made_of": None, "config": {}}, {"made_of": {"text": "1"}, "config": 3}])
def test_of_an_older_result_nothing_is_known_to_have_changed(result: dict[str, Any]) -> None:
    assert changed(result, own=True) == []


def test_a_dotted_path_leads_to_its_module() -> None:
    found = module_of("aiayn.model.attention.multi_head.MultiHeadAttention.forward")
    assert found == (
        "aiayn.model.attention.multi_head",
        files.__file__ and Path(files.__file__).parent / "model" / "attention" / "multi_head.py",
    )
    assert module_of("nowhere.at.all") is module_of("") is module_of("..") is None


def test_a_finished_row_that_is_stale_says_so_and_runs_only_when_it_is_forced(tmp_path: Path) -> None:
    made = text_config(tmp_path)
    folder = left(tmp_path / "row", made, status="done", made_of=made_of(made, own=True))

    def seen(config: dict[str, Any] | None, **forced: bool) -> Progress:
        return Progress.of(Run.read(folder, row="row", config={**config, **forced} if config else None))

    assert [seen(made).state, seen(None).state] == ["done", "done"]
    passed = seen(made, force=True)
    assert is_passed_over(passed)  # as nothing has changed
    assert passed.state == "done before"
    (tmp_path / "train.en").write_text("another\nb\n")
    assert [seen(made).state, seen(None).state] == ["stale (text)", "stale (text)"]
    passed = seen(made)
    assert is_passed_over(passed)
    assert passed.state == "stale (text)"
    assert not is_passed_over(seen(made, force=True))
    assert dict(notes(rows_of([passed.run]), ""))["stale"] == "tiny_text: text changed since"


def test_what_to_do_about_a_stale_row_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show([Progress(Run(tmp_path, "row"), "stale (text)")])
    assert "force=true" in capsys.readouterr().out


def test_how_a_part_is_built_is_no_column_of_a_table() -> None:
    config = composed("model.layers=2", "+model.attention.relative={_target_: mine.Near, _partial_: true}")
    found = settings(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    assert found["model.attention.relative._target_"] == "mine.Near"
    assert not [key for key in found if key.endswith("_partial_")]


def test_what_an_evaluation_measures_makes_it_and_its_folder() -> None:
    bleu, both = {"bleu": {"_target_": "a.Bleu"}}, {"bleu": {"_target_": "a.Bleu"}, "mine": {"_target_": "b.Mine"}}
    training = {"objective": "bleu", "seed": 1}
    assert not differing({**training, "metrics": bleu}, {**training, "metrics": both})
    evaluation = {**training, "checkpoint": "/a.ckpt"}
    assert differing({**evaluation, "metrics": bleu}, {**evaluation, "metrics": both}) == ["metrics.mine._target_"]
    rows = [row(["checkpoint=/a.ckpt", f"metrics={chosen}"]) for chosen in ("[bleu]", "[bleu,mine]")]
    assert len(set(rows)) == 2
    assert row(["metrics=[bleu]"]) == row(["metrics=[bleu,mine]"])


def test_what_a_callback_of_ones_own_measures_by_is_not_learned() -> None:
    configs = [{"callbacks": {"mine": {"every": 7, "metrics": {"bleu": {"tokenize": name}}}}} for name in ("13a", "zh")]
    assert not differing(*configs)
    assert differing(configs[0], {"callbacks": {"mine": {"every": 5}}}) == ["callbacks.mine.every"]
