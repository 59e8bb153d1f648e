"""Every row of bad_inputs.yaml is refused in one line that says why, and leaves nothing behind."""

import pickle
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from conftest import CommandLine, write_checkpoint
from hydra._internal import config_loader_impl

from aiayn.data.tokenizer import Tokenizer
from aiayn.inference.translation import Translator

pytestmark = pytest.mark.slow

MODEL = ("model.layers=1", "model.d_model=16", "model.d_ff=32", "model.heads=2", "trainer=cpu")
TABLE: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix("").with_name("bad_inputs.yaml").read_text())
ROWS = [(f"{part['with']} {inputs}".strip(), says) for part in TABLE for inputs, says in part["rows"].items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands are given: a run, text, and what is neither."""
    place = tmp_path_factory.mktemp("place")
    for name in ("averaged", "step_0000001", "step_0000002"):
        write_checkpoint(place / "run" / "checkpoints" / f"{name}.ckpt", *MODEL, words=["one", "two", "three"])
    (place / "folder").mkdir()
    texts = {"a.en": "one\ntwo\n", "a.de": "eins\nzwei\n", "short.de": "eins\n", "empty.txt": "", "wide.txt": "x" * 9}
    texts["tree.mrg"] = "(S (NN a))\n"
    for name, text in texts.items():
        (place / name).write_text(text)
    (place / "latin1.txt").write_bytes("f\xfcnf\nzw\xf6lf\n".encode("latin-1"))
    return place


@pytest.fixture(scope="module")
def kept_configs() -> Iterator[None]:
    """Read each choice of config files once: to read them is three quarters of a command that is refused."""

    made = config_loader_impl.create_defaults_list
    lists: dict[str, bytes] = {}

    def defaults_list(repo: Any, config_name: str, overrides_list: Any, **more: Any) -> Any:
        values = [o for o in overrides_list if isinstance(o.value(), dict) or not repo.group_exists(o.key_or_group)]
        key = repr((config_name, [o.input_line for o in overrides_list if o not in values], more))
        if key not in lists:
            lists[key] = pickle.dumps(made(repo, config_name, overrides_list, **more))
        found = pickle.loads(lists[key])
        found.config_overrides = values
        return found

    loader, name = config_loader_impl.ConfigLoaderImpl, "_compose_config_from_defaults_list"
    compose, configs = getattr(loader, name), {}

    def composed(self: Any, defaults: Any, repo: Any) -> Any:
        if (key := repr(defaults)) not in configs:
            configs[key] = pickle.dumps(compose(self, defaults, repo))
        return pickle.loads(configs[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, name, composed)
        patch.setattr(config_loader_impl, "create_defaults_list", defaults_list)
        yield


def reached(*arguments: Any, **more: Any) -> NoReturn:
    raise AssertionError("the input was accepted: a tokenizer is trained, or text translated")


def contents(folder: Path) -> dict[Path, int]:
    """Every file and folder below, with its size."""
    return {path: path.stat().st_size for path in folder.rglob("*")}


@pytest.mark.parametrize(("line", "says"), ROWS, ids=[line for line, _ in ROWS])
@pytest.mark.usefixtures("kept_configs")
def test_a_bad_input_is_one_clear_line(
    line: str, says: str, place: Path, in_process: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("AIAYN_OUTPUTS", str(place / "outputs"))
    monkeypatch.setattr(Tokenizer, "train", reached)
    monkeypatch.setattr(Translator, "n_best", reached)
    before = contents(place)
    done = in_process(*shlex.split(line))
    assert done.returncode == 1
    *log, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert "unexpected" not in last
    assert "Traceback" not in done.stderr
    assert [word for word in shlex.split(says) if word not in last] == [], last
    assert done.stdout == ""
    assert log == []
    assert contents(place) == before
