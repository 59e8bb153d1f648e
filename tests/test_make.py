"""`make setup` finds a Python that will do, or says which are needed."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT


def make(folder: Path, *arguments: str, pythons: list[str]) -> subprocess.CompletedProcess[str]:
    """Call make in a copy of the project's root, where there are no other Pythons than those."""
    (folder / "bin").mkdir()
    for tool in ("sh", "make", "test", "echo"):
        if found := shutil.which(tool):
            (folder / "bin" / tool).symlink_to(found)
    for name in ("python3.11", "python3.12", "python3.13", "python3", "python"):
        if name in pythons:
            (folder / "bin" / name).symlink_to(sys.executable)
        else:  # as a version manager's stand-in for one that is not installed
            (folder / "bin" / name).write_text("#!/bin/sh\nexit 127\n")
            (folder / "bin" / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    # `make test` runs this too, and one make below another says which folders it enters.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment = {**inherited, "PATH": str(folder / "bin")}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("there", "found"),
    [(["python3.13", "python3"], "python3.13"), (["python3.13", "python3.11"], "python3.11"), (["python"], "python")],
)
def test_make_takes_the_first_python_that_will_do(there: list[str], found: str, tmp_path: Path) -> None:
    done = make(tmp_path, "--eval=show: ; @echo $(PYTHON)", "show", pythons=there)
    assert (done.stdout.strip(), done.stderr) == (found, "")


def test_without_one_make_says_which_are_needed(tmp_path: Path) -> None:
    done = make(tmp_path, "setup", pythons=[])
    assert done.returncode != 0
    assert done.stderr.startswith("error: no Python 3.11, 3.12 or 3.13 found; install one")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
