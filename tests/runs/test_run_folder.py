import fcntl
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from aiayn import identity
from aiayn.runs import run_folder
from aiayn.runs.run_folder import RunFolder, git_commit


def config(*, max_steps: int = 7, d_ff: int = 11, workers: int = 0) -> dict:
    return {
        "model": {"d_ff": d_ff},
        "data": {"loader_workers": workers},
        "training": {"max_steps": max_steps},
        "seed": 1,
    }


def finished(path: Path) -> None:
    folder = RunFolder(path, config())
    folder.start()
    folder.write(status="done", steps=7)


def test_a_finished_run_is_done_until_more_steps_are_asked_for(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path, config()).done
    finished(tmp_path)
    assert RunFolder(tmp_path, config()).done
    assert RunFolder(tmp_path, config(workers=2)).done  # no other experiment
    assert not RunFolder(tmp_path, config(max_steps=13)).done


@pytest.mark.parametrize(
    ("now", "done"),
    [
        ({}, True),
        ({"callbacks": {"speed": {"log_steps": 5}, "early_stopping": {"patience": 3}}}, True),
        ({"callbacks": {"speed": {}, "early_stopping": {"patience": 5}}}, False),
        ({"callbacks": {"speed": {}}}, False),
        ({"trainer": {"max_time": "01:00:00:00"}}, False),
        ({"training": {"max_steps": 99, "max_epochs": None}}, True),
        ({"training": {"max_steps": 99, "max_epochs": 3}}, False),
        ({"training": {"max_steps": 5, "max_epochs": 3}}, True),
    ],
    ids=str,
)
def test_a_run_that_was_stopped_is_done_until_what_stopped_it_is_changed(tmp_path: Path, now: dict, done: bool) -> None:
    stopped = {**config(max_steps=11), "callbacks": {"speed": {}, "early_stopping": {"patience": 3}}}
    folder = RunFolder(tmp_path, stopped)
    folder.start()
    folder.write(status="done", steps=7, stopped="no better")
    assert RunFolder(tmp_path, {**stopped, **now}).done == done


@pytest.mark.parametrize("config_of_it", [5, None, []])
def test_a_result_without_a_config_is_damaged(tmp_path: Path, config_of_it: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"status": "done", "config": config_of_it}))
    with pytest.raises(ValueError, match=r"result\.json is damaged; delete it"):
        RunFolder(tmp_path, config())


def test_a_run_of_when_attention_had_one_map_cannot_go_on(tmp_path: Path) -> None:
    before = {**config(), "model": {"d_ff": 11, "attention": {"heads": 3}}}
    (tmp_path / "result.json").write_text(json.dumps({"status": "done", "steps": 7, "config": before}))
    with pytest.raises(ValueError, match="holds a run of an older aiayn, which cannot go on"):
        RunFolder(tmp_path, {**config(), "objective": "bleu"})


def test_a_run_starts_although_somebody_looks(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, config())
    with (tmp_path / ".lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.3, fcntl.flock, [looking, fcntl.LOCK_UN]).start()
        folder.lock()


def test_a_run_that_failed_before_its_first_checkpoint_binds_nobody(tmp_path: Path) -> None:
    RunFolder(tmp_path, config()).write(status="failed", error="no such file", config=config())
    assert RunFolder(tmp_path, config(d_ff=13)).result == {}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step_0000003.ckpt").touch()
    with pytest.raises(ValueError, match=r"model.d_ff=11, not 13"):
        RunFolder(tmp_path, config(d_ff=13))


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(ValueError, match=r"model\.d_ff=11, not 13"):
        RunFolder(tmp_path, config(d_ff=13))


def test_a_switch_that_is_off_is_one_that_an_older_run_did_not_have(tmp_path: Path) -> None:
    finished(tmp_path)
    newer = config()
    newer["data"]["byte_fallback"] = False
    assert RunFolder(tmp_path, newer).done
    newer["data"]["byte_fallback"] = True
    with pytest.raises(ValueError, match=r"data\.byte_fallback=None, not True"):
        RunFolder(tmp_path, newer)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, config()), RunFolder(tmp_path, config())
    first.lock()
    with pytest.raises(ValueError, match="in use by another process"):
        second.lock()


def test_a_run_goes_on_with_the_micro_batches_it_was_started_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, config())
    folder.start(world_size=2, accumulation=3)
    folder.check_resumable(config(), 5, {"world_size": 2, "accumulation": 3})
    with pytest.raises(ValueError, match="2 devices x 3 micro-batches a step, not 1 x 3"):
        folder.check_resumable(config(), 5, {"world_size": 1, "accumulation": 3})
    with pytest.raises(ValueError, match="max_steps=7 is less than the 11 steps"):
        folder.check_resumable(config(), 11, {"world_size": 2, "accumulation": 3})
    with pytest.raises(ValueError, match=r"model\.d_ff=13, not 11"):
        folder.check_resumable(config(d_ff=13), 5, {"world_size": 2, "accumulation": 3})


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]"):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(ValueError, match=r"result\.json is damaged"):
            RunFolder(tmp_path, config())


def test_the_latest_checkpoint_is_the_one_with_the_most_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, config())
    assert folder.latest is None
    folder.checkpoints.mkdir()
    others = (
        "best.ckpt",
        ".step_0000011.ckpt.host.123.partial",
        "step_backup.ckpt",
        "step_12.ckpt",
        "step_0000013.ckpt.bak",
    )
    for name in ("step_0000002.ckpt", "step_0000010.ckpt", *others):
        (folder.checkpoints / name).touch()
    assert folder.latest == folder.checkpoints / "step_0000010.ckpt"
    (folder.checkpoints / "step_10000000.ckpt").touch()
    (folder.checkpoints / "step_9999999.ckpt").touch()
    assert folder.latest == folder.checkpoints / "step_10000000.ckpt"


@pytest.mark.parametrize(("theirs", "mine", "fits"), [({}, {"x": False}, True), ({"x": 3}, {"x": None}, False)])
def test_only_a_switch_that_is_off_may_be_missing(tmp_path: Path, theirs: dict, mine: dict, fits: bool) -> None:
    finished(tmp_path)
    folder = RunFolder(tmp_path, {**config(), "model": {"d_ff": 11, **mine}})
    stored = {**config(), "model": {"d_ff": 11, **theirs}}
    if fits:
        folder.check_resumable(stored, 5, {})
    else:
        with pytest.raises(ValueError, match=r"model\.x=3, not None"):
            folder.check_resumable(stored, 5, {})


def test_a_commit_is_marked_when_code_differs_from_it_and_not_for_results_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(run_folder, "PROJECT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "a")
    commit = git_commit()
    (tmp_path / "out.txt").write_text("a translation")
    assert git_commit() == commit
    (tmp_path / "src" / "b.py").write_text("2")
    assert git_commit() == f"{commit}+"


def begun(path: Path, **result: object) -> Path:
    """A folder with a checkpoint, and a copy of one that a person keeps."""
    (path / "checkpoints").mkdir(parents=True)
    for name in ("step_0000003.ckpt", "best.ckpt", "step_backup.ckpt"):
        (path / "checkpoints" / name).touch()
    content = {"status": "running", "config": config(), "made_of": {"text": "1"}, "corpus": "old", **result}
    (path / "result.json").write_text(json.dumps(content))
    return path


def test_a_run_does_not_go_on_with_other_text_pieces_or_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(begun(tmp_path), config())
    folder.check_text()  # what cannot be read has not changed
    with pytest.raises(ValueError, match="trained with the tokenizer abc, and its data now make xyz"):
        folder.check_corpus({"tokenizer_hash": "abc"}, tokenizer_hash="xyz", corpus="old")
    with pytest.raises(ValueError, match="trained with the corpus old, and its data now make new"):
        folder.check_corpus({"tokenizer_hash": "abc"}, tokenizer_hash="abc", corpus="new")
    folder.check_corpus({"tokenizer_hash": "abc"}, tokenizer_hash="abc", corpus="old")
    monkeypatch.setattr(identity, "made_of", lambda config, own: {"text": "2"})
    with pytest.raises(ValueError, match="text has changed since it began"):
        RunFolder(tmp_path, config()).check_text()


def test_a_run_that_begins_anew_removes_its_results_and_nothing_else(tmp_path: Path) -> None:
    folder, other_rank = (RunFolder(begun(tmp_path) if first else tmp_path, config()) for first in (True, False))
    (tmp_path / "translations").mkdir()
    (tmp_path / "notes.txt").touch()
    waiting = threading.Thread(target=other_rank.begin_anew, kwargs={"first_rank": False})
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    folder.begin_anew(first_rank=True)
    waiting.join(30)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "checkpoints/step_backup.ckpt",
        "notes.txt",
    ]
    assert (folder.result, folder.changed, folder.done) == (other_rank.result, other_rank.changed, other_rank.done)
    assert folder.result == {}


def test_what_another_process_wrote_while_the_lock_was_waited_for_counts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, config())
    begun(tmp_path, status="done", steps=config()["training"]["max_steps"])
    folder.lock()
    assert folder.done


def test_a_done_run_whose_results_were_half_removed_is_done_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(begun(tmp_path, status="done", steps=config()["training"]["max_steps"]), config())
    (tmp_path / "translations").mkdir()
    assert folder.done

    def killed(path: Path, *, ignore_errors: bool = False) -> None:  # errors are ignored of what is half-written
        if not ignore_errors:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.begin_anew(first_rank=True)
    again = RunFolder(tmp_path, config())
    assert (again.latest, again.done) == (None, False)


def test_what_a_run_is_made_of_is_recorded_when_it_begins_and_not_when_it_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, config())
    folder.start()
    assert "aiayn.training" in folder.result["made_of"]
    folder = RunFolder(begun(tmp_path / "old"), config())
    folder.start()
    assert folder.result["made_of"] == {"text": "1"}


def test_a_run_that_was_moved_goes_on(tmp_path: Path) -> None:
    here = {
        **config(),
        "run_dir": "/a",
        "callbacks": {"averaging": {"dirpath": "/a/checkpoints"}},
        "logger": {"x": "/a"},
    }
    folder = RunFolder(begun(tmp_path, config=here), {**here, "run_dir": "/b", "callbacks": {}, "logger": {}})
    folder.check_resumable(here, 3, {})
