"""Sweeps as they stand: what task=status tells of each row, and rows on several devices that fail on one of them."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from aiayn.commands.status import status
from aiayn.runs.run import Run
from aiayn.runs.sweep import Progress, duration, lock_sweep, seconds_left, table
from aiayn.schema import TRAIN
from hydra_plugins.aiayn_launcher.jobs import Job, is_done, progress_of, refuse

METRICS = """dev/bleu,step,train/loss
,{first},7.0
3.14,{first},
,{last},5.0
"""


def make_run(folder: Path, *, result: dict | None = None, first: int = 10, last: int = 20) -> Path:
    """A run's folder; without a result, one that could not start."""
    (folder / "metrics" / "version_0").mkdir(parents=True)
    (folder / "console.log").write_text("preparing\nerror: model.heads must divide model.d_model\n\n")
    (folder / ".lock").touch()
    if result:
        (folder / "metrics" / "version_0" / "metrics.csv").write_text(METRICS.format(first=first, last=last))
        config = {"training": {"max_steps": 50}}
        (folder / "result.json").write_text(json.dumps({"config": config, **result}))
    return folder


def row(folder: Path, **keys: bool) -> DictConfig:
    """What task=status gets for a row of a sweep."""
    keys = {"stop": False, "watch": False, **keys}
    return OmegaConf.create({"folder": None, "run_dir": str(folder), "training": {"max_steps": 50}, **keys})


def test_status_shows_every_row(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    scores = {"averaged": {"dev": {"bleu": {"value": 27.182}}}}
    make_run(tmp_path / "a_done", result={"status": "done", "steps": 50, "scores": scores})
    make_run(tmp_path / "b_running", result={"status": "running"})
    make_run(tmp_path / "c_stopped", result={"status": "running"})
    make_run(tmp_path / "d_failed", result={"status": "failed", "error": "no memory"})
    make_run(tmp_path / "e_refused")
    names = ("a_done", "b_running", "c_stopped", "d_failed", "e_refused", "f_missing")
    rows = [row(tmp_path / name) for name in names]
    with (tmp_path / "b_running" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status(*rows)
    output = capsys.readouterr().out
    lines = [line.split("\u2502") for line in output.splitlines() if "\u2502" in line]
    cells = {name.strip(): [cell.strip() for cell in others] for name, *others in lines}
    assert cells["a_done"][:4] == ["done", "50 / 50", "27.18", ""]
    assert cells["b_running"][:3] == ["running", "20 / 50", "3.14"]
    assert cells["c_stopped"] == ["stopped", "20 / 50", "3.14", "", ""]
    assert cells["d_failed"][0] == "failed"
    assert cells["e_refused"][0] == "failed"
    assert cells["f_missing"] == ["missing", "", "", "", ""]
    assert "d_failed failed: no memory; see" in output
    assert "e_refused failed: model.heads must divide model.d_model; see" in output
    assert "1 done, 1 running, 1 stopped, 2 failed, 1 missing" in output


def test_rows_that_failed_for_one_reason_are_one_line(tmp_path, capsys):
    folders = [make_run(tmp_path / name) for name in ("a", "b", "c")]
    (folders[1] / "console.log").write_text("error: the disk is full\n")
    status(*(row(folder) for folder in folders))
    said = [line for line in capsys.readouterr().out.splitlines() if " failed: " in line]
    assert [line.partition("; see")[0] for line in said] == [
        "a, c failed: model.heads must divide model.d_model",
        "b failed: the disk is full",
    ]


def test_rows_that_are_refused_for_one_reason_are_one_line(tmp_path, caplog):
    config = OmegaConf.create({"task": TRAIN, "seed": -1})
    jobs = [Job(name, tmp_path / name, [], config) for name in ("a", "b")]
    refuse(jobs, progress_of(jobs, "not run"))
    assert [message.partition("refused: ")[::2] for message in caplog.messages] == [
        ("a, b are ", "seed must be at least 0 and below 4294967296, got -1.")
    ]


@pytest.mark.parametrize(("key", "value"), [("stop", "no"), ("watch", "yes1")])
def test_a_switch_that_is_no_boolean_is_refused(tmp_path, key, value):
    make_run(tmp_path / "a", result={"status": "running"})
    with pytest.raises(ValueError, match=f"{key} must be true or false, got {value}"):
        status(OmegaConf.create({**row(tmp_path / "a", **{}), "folder": str(tmp_path), key: value}))


def test_a_folder_of_runs_has_a_status_too(tmp_path, capsys):
    make_run(tmp_path / "a", result={"status": "running"})
    status(OmegaConf.create({"folder": str(tmp_path), "stop": True, "watch": False}))
    assert "1 stopped" in capsys.readouterr().out


def test_the_runs_of_a_folder_are_a_list_the_newest_last(tmp_path, capsys):
    scores = {"averaged": {"dev": {"bleu": {"value": 27.182}}}}
    make_run(tmp_path / "x" / "done", result={"status": "done", "steps": 50, "scores": scores})
    make_run(tmp_path / "y" / "stopped", result={"status": "running"})
    make_run(tmp_path / "z" / "early", result={"status": "failed", "error": "no memory\x1b[2J"})
    for name, hour in (("z/early", 1), ("x/done", 3), ("y/stopped", 2)):
        for file in ("result.json", "metrics/version_0/metrics.csv"):
            seconds = time.mktime((2017, 6, 12, hour, 30, 0, 0, 0, -1))
            os.utime(tmp_path / name / file, (seconds, seconds))
    status(OmegaConf.create({"folder": str(tmp_path), "stop": False, "watch": False}))
    said = capsys.readouterr().out
    lines = [line.replace("\u2502", "").split() for line in said.splitlines() if "2017-06-12" in line]
    assert lines == [
        ["z/early", "failed", "20", "/", "50", "3.14", "2017-06-12", "01:30"],
        ["y/stopped", "stopped", "20", "/", "50", "3.14", "2017-06-12", "02:30"],
        ["x/done", "done", "50", "/", "50", "27.18", "2017-06-12", "03:30"],
    ]
    assert "z/early failed: no memory\\x1b[2J" in said


def test_a_score_that_is_a_share_has_four_decimals(tmp_path):
    result = {"status": "done", "steps": 50, "scores": {"averaged": {"dev": {"f1": {"value": 0.91234}}}}}
    folder = make_run(tmp_path / "a", result=result)
    run = Run.read(folder, row="a", config={"objective": "f1", "training": {"max_steps": 50}})
    assert Progress.of(run).cells()[2] == "0.9123"


def test_a_sweep_is_readable_in_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Console, "width", 80)
    rows = []
    for heads in (1, 4, 8):
        for seed in (1, 2):
            folder = make_run(tmp_path / f"seed={seed},model.heads={heads},{'x' * 99}", result={"status": "running"})
            config = {"name": "mine", "seed": seed, "model": {"heads": heads}, "training": {"max_steps": 300_000}}
            rows.append({**row(folder), **config, "my": dict.fromkeys("abcd", 7)})
    status(*map(OmegaConf.create, rows))
    lines = [line for line in capsys.readouterr().out.splitlines() if "\u2502" in line]
    assert [line.split("\u2502")[0].strip() for line in lines] == [
        f"heads={heads}, seed {seed}" for heads in (1, 4, 8) for seed in (1, 2)
    ]
    assert max(map(len, lines)) <= 80


def test_hours_are_not_made_days():
    assert [duration(seconds) for seconds in (None, 61.4, 3600 * 100 + 123)] == ["", "0:01:01", "100:02:03"]


def test_the_time_left_is_at_the_pace_of_the_process_that_runs(tmp_path):
    run = make_run(tmp_path / "run", result={"status": "running"})
    now = time.time()
    os.utime(run / ".lock", (now - 100, now - 100))
    newest = run / "metrics" / "version_0" / "metrics.csv"
    os.utime(newest, (now, now))
    assert seconds_left(Run.read(run, row="run")) == pytest.approx(30 * 100 / 20, rel=0.01)
    newest = run / "metrics" / "version_10" / "metrics.csv"  # it was resumed after step 20
    newest.parent.mkdir()
    newest.write_text(METRICS.format(first=30, last=40))
    os.utime(newest, (now, now))
    assert seconds_left(Run.read(run, row="run")) == pytest.approx(10 * 100 / 20, rel=0.01)


def test_a_long_table_shows_what_runs():
    rows = [
        Progress(Run(Path(str(number)), f"[{number}]"), "done" if number < 23 else "not run") for number in range(29)
    ]
    rows[23].state = "running"
    assert list(table(rows, most=5).columns[1].cells)[1].plain == "running"
    assert [cell.plain for cell in table(rows, most=7).columns[0].cells] == [f"[{number}]" for number in range(22, 29)]
    assert len(table(rows, most=31).rows) == 29


def test_a_row_that_a_resumed_sweep_repeats_is_read_again(tmp_path):
    row = Progress(Run(tmp_path / "a", "a"), "not run")
    row.begin()
    make_run(tmp_path / "a", result={"status": "running"})
    row.look()
    assert row.cells()[1] == "20 / 50"
    row.end("failed (exit code 1)")
    assert row.run.error == "model.heads must divide model.d_model"


def test_a_sweep_is_refused_beside_another_one(tmp_path):
    with lock_sweep(tmp_path), pytest.raises(ValueError, match=f"in use by process {os.getpid()} on .*stop=true"):
        lock_sweep(tmp_path)
    lock_sweep(tmp_path).close()


def test_a_status_of_nothing_is_refused(aiayn):
    assert "give sweep=... or folder=PATH" in aiayn("task=status", code=1, small=False).stderr


def test_a_sweep_that_was_not_started_has_a_status(aiayn):
    done = aiayn("task=status", "-m", "seed=2,3")
    assert "2 missing" in done.stdout


FAIL = """
import os

from lightning.pytorch import Callback


class Fail(Callback):
    def __init__(self, seed):
        self.seed = seed if os.environ.get("LOCAL_RANK") == "1" else 0
        if self.seed == 2:
            raise RuntimeError("rank 1 does not start")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.seed == 3 and trainer.global_step == 5:
            raise RuntimeError("rank 1 does not go on")
"""


def processes(word: str) -> list[str]:
    """Command lines that contain a word."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in lines if word in line]


@pytest.mark.slow
def test_rows_on_several_devices_end_when_one_of_them_fails(aiayn, tmp_path, monkeypatch):
    (tmp_path / "fail.py").write_text(FAIL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    place = (f"hydra.sweep.dir={tmp_path}/sweep", "hydra.sweep.subdir=seed_${seed}")
    flags = ("trainer=ddp_cpu", "training.max_steps=12", *place)
    done = aiayn(
        "-m", "seed=2,3,5", "+callbacks.fail._target_=fail.Fail", "+callbacks.fail.seed=${seed}", *flags, code=1
    )
    cells = [line.split("\u2502") for line in done.stdout.splitlines() if line.count("\u2502") == 5]
    assert [state.split()[0] for _, state, *_ in cells[-3:]] == ["failed", "failed", "done"]
    assert "rank 1 does not start" in done.stdout
    assert "rank 1 does not go on" in done.stdout
    result = json.loads((tmp_path / "sweep" / "seed_5" / "result.json").read_text())
    assert (result["status"], result["world_size"]) == ("done", 2)
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir())
    assert names == [".sweep.lock", "multirun.yaml", "seed_2", "seed_3", "seed_5"]  # no rank swept by itself
    assert processes(str(tmp_path)) == []


def test_a_job_is_done_when_this_very_job_was_finished(tmp_path):
    # An evaluation keeps what it was composed of beside the config of its checkpoint.
    planned = {"checkpoint": "a.ckpt", "model": {"name": "tiny"}, "inference": {"beam": 2}, "launcher": {"parallel": 1}}
    again = {**planned, "launcher": {"parallel": 4}, "trainer": {"devices": 2}}
    other = {**planned, "inference": {"beam": 4}}
    result = {"status": "done", "composed": planned, "config": {"model": {"name": "big"}}}
    assert is_done(Run(tmp_path, "row", again, result))
    assert not is_done(Run(tmp_path, "row", other, result))
    assert is_done(Run(tmp_path, "row", again, {"status": "done", "config": planned}))
    assert not is_done(Run(tmp_path, "row", again, {"status": "failed", "config": planned}))
