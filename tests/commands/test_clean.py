"""task=clean removes what it lists, and nothing else."""

import fcntl
import json
from pathlib import Path

import pytest
from conftest import composed

from aiayn.commands.clean import clean
from aiayn.runs.run_folder import RunFolder

FOREIGN = ("step_backup.ckpt", "average_last_5.ckpt", "notes.txt")
SIZES = {"step_0000003.ckpt": 3, "step_0000011.ckpt": 5, "best.ckpt": 7, "averaged.ckpt": 11}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a finished run, with files of somebody else among its own."""
    path = tmp_path / "run"
    (path / "checkpoints").mkdir(parents=True)
    for name, size in SIZES.items():
        (path / "checkpoints" / name).write_bytes(b"." * size * 10**6)
    for name in FOREIGN:
        (path / "checkpoints" / name).touch()
    config = {"model": {"d_ff": 11}, "training": {"max_steps": 11}, "seed": 1}
    (path / "result.json").write_text(json.dumps({"status": "done", "steps": 11, "config": config}))
    return path


def left(run: Path) -> set[str]:
    return {file.name for file in (run / "checkpoints").iterdir()} - set(FOREIGN)


def cleaned(run: Path, *overrides: str) -> None:
    clean(composed("task=clean", f"run={run}", *overrides))


def test_what_would_go_is_said_and_goes_only_when_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cleaned(run)
    assert left(run) == set(SIZES)
    told = capsys.readouterr().out
    assert [line.split() for line in told.splitlines()[:-1]] == [
        [f"{SIZES[name]:.1f}", "MB", f"checkpoints/{name}"]
        for name in ("step_0000003.ckpt", "step_0000011.ckpt", "best.ckpt")
    ]
    assert told.split("\n")[-2].split()[:2] == ["15.0", "MB"]
    assert "remove=true" in told
    cleaned(run, "remove=true")
    assert {file.name for file in (run / "checkpoints").iterdir()} == {"averaged.ckpt", *FOREIGN}
    assert "15.0 MB  were freed; averaged.ckpt stays" in capsys.readouterr().out
    folder = RunFolder(run, json.loads((run / "result.json").read_text())["config"])
    assert folder.done


def test_a_run_of_an_older_time_is_cleaned_too(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["config"]["model"] |= {"attention": {"heads": 2}, "heads": 2}
    (run / "result.json").write_text(json.dumps(result))
    cleaned(run, "remove=true")
    assert left(run) == {"averaged.ckpt"}


@pytest.mark.parametrize(
    ("keep", "names"),
    [("last", {"step_0000011.ckpt"}), ("[best,last]", {"best.ckpt", "step_0000011.ckpt"}), ("best", {"best.ckpt"})],
)
def test_what_is_named_stays(run: Path, keep: str, names: set[str]) -> None:
    cleaned(run, f"keep={keep}", "remove=true")
    assert left(run) == names


@pytest.mark.parametrize(
    ("status", "overrides", "words"),
    [
        ("running", [], "must be the folder of a finished run, but its state is stopped"),
        ("done", ["keep=[]"], "keep must be one of averaged, best, last, or a list"),
        ("done", ["keep=newest"], "keep must be one of averaged, best, last, or a list"),
        ("done", ["remove=1"], "remove must be true or false"),
    ],
)
def test_what_cannot_be_cleaned_is_refused_and_stays(run: Path, status: str, overrides: list[str], words: str) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": status}))
    with pytest.raises(ValueError, match=words):
        cleaned(run, "remove=true", *overrides)
    assert left(run) == set(SIZES)


def test_a_run_that_is_in_use_or_lacks_what_is_to_be_kept_is_refused(run: Path) -> None:
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is running"):
            cleaned(run, "remove=true")
    (run / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(ValueError, match=r"keep=best: run=.* has no best\.ckpt"):
        cleaned(run, "remove=true", "keep=[averaged,best]")
    assert left(run) == set(SIZES) - {"best.ckpt"}


def test_a_cleaned_run_does_not_start_anew_by_itself(run: Path) -> None:
    (run / "checkpoints" / "step_backup.ckpt").unlink()
    cleaned(run, "remove=true")
    config = json.loads((run / "result.json").read_text())["config"]
    longer = RunFolder(run, {**config, "training": {"max_steps": 13}})
    assert not longer.done
    with pytest.raises(ValueError, match="has no checkpoint left to go on from"):
        longer.check_kept()
