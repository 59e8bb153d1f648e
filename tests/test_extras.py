"""A package of an extra that is missing is named in one line with what adds it; who does not need it sees nothing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, CommandLine, environment, write_checkpoint

import aiayn.commands
from aiayn.errors import explain, extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT_SLURM = """
import runpy, sys
sys.modules["hydra_plugins.hydra_submitit_launcher"] = None
sys.argv = ["run.py", *sys.argv[1:]]
runpy.run_path({!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("fastapi", "serve", ["task=serve", "checkpoint=run", "port=0"]),
        ("ctranslate2", "export", ["task=export", "checkpoint=run", "output=exported"]),
        ("ctranslate2", "export", ["task=translate", "checkpoint=run", "input=text", "backend=ctranslate2"]),
        ("plotly", "report", ["task=report", "folder=."]),
        ("matplotlib", "report", ["task=attention", "checkpoint=run", "sentence=one"]),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra_that_has_it(
    package: str,
    extra: str,
    arguments: list[str],
    in_process: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "run" / "checkpoints" / "averaged.ckpt", words=["one", "two"])
    (tmp_path / "text").write_text("one\n")
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if re.match(rf"aiayn\.(commands|serving)\b|{package}\b", name)]:
            patch.delitem(sys.modules, name)  # what was imported before
        for name in ("commands", "serving"):  # to import them again sets these too
            patch.delattr(aiayn, name, raising=False)
        patch.setitem(sys.modules, package, None)  # so Python says that it is not there
        done = in_process(*arguments, f"outputs={tmp_path}/outputs")
    assert aiayn.commands is sys.modules["aiayn.commands"]  # as it was: what other tests have imported they can patch
    assert done.returncode == 1
    assert done.stderr == f"error: {package} is not installed; pip install '{ROOT}[{extra}]' adds it.\n"


def test_a_library_that_only_says_what_it_lacks_is_understood() -> None:
    error = ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available. Try `pip install`ing either.")
    assert explain(error) == f"tensorboard is not installed; pip install '{ROOT}[tensorboard]' adds it."
    assert "own.plots" in explain(ModuleNotFoundError("No module named 'own.plots'", name="own.plots"))


def test_without_submitit_everything_else_starts_and_launcher_slurm_says_what_adds_it() -> None:
    for arguments, code, says in (
        (["--cfg", "job"], 0, ""),
        (["launcher=slurm"], 1, f"error: launcher=slurm is not installed; pip install '{ROOT}[slurm]' adds it.\n"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_SLURM.format(str(ROOT / "src" / "run.py")), *arguments],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert (done.returncode, done.stderr) == (code, says)


def test_exact_versions_are_in_the_lock_alone_and_it_has_every_package() -> None:
    needed = [
        *PROJECT["dependencies"],
        *(name for names in PROJECT["optional-dependencies"].values() for name in names),
    ]
    assert not [requirement for requirement in needed if "==" in requirement]
    locked = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "requirements.lock").read_text().splitlines()
    }
    assert {re.split(r"[^\w-]", requirement)[0] for requirement in needed} - {"aiayn"} <= locked
    assert extras()["slurm"] == {"hydra_submitit_launcher", "submitit"}
