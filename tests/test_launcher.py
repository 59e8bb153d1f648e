"""The launcher of sweeps, with a run script that takes no time: what it runs, skips, reports, and how it ends."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

from aiayn.runs.sweep import stop_sweep
from aiayn.schema import TRAIN
from hydra_plugins.aiayn_launcher.devices import share, visible_gpus

pytestmark = pytest.mark.slow

STATE, _, BLEU, _, _ = range(5)  # columns of the table behind the row's name
SOURCE = Path(__file__).parents[1] / "src"

# Writes down how it was called; `does` says what it does then.
RUN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    folder = Path(HydraConfig.get().runtime.output_dir)
    seen = dict(environment=dict(os.environ), pid=os.getpid(), mode=HydraConfig.get().mode.name, text=cfg.text)
    (folder / "seen.json").write_text(json.dumps(seen))
    with (folder / "times").open("a") as times:
        times.write("started\\n")
    print("said by", cfg.heads, flush=True)
    if cfg.does == "fail" and cfg.heads == 2:
        raise RuntimeError("out of memory")
    if cfg.does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if cfg.does == "leave a rank":
        rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "rank").write_text(str(rank.pid))
    if cfg.does == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if cfg.does == "meet":
        (folder / "waits").touch()
        while not (folder.parent / f"heads={5 - cfg.heads}" / "waits").exists():
            time.sleep(0.01)
    if cfg.does == "log":
        (folder / "metrics" / "version_0").mkdir(parents=True)
        (folder / "metrics" / "version_0" / "metrics.csv").write_text("dev/bleu,step,train/loss\\n3.14,700,1.1\\n")
    if cfg.does in ("wait", "hang", "log"):
        (folder / "waits").touch()
        time.sleep(600)
    scores = {"averaged": {"dev": {"bleu": {"value": 10.127 * cfg.heads}}}}
    result = {"status": cfg.status, "scores": scores, "config": OmegaConf.to_container(cfg)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
    loaded = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "lightning"})
    print("loaded", loaded)
"""

CONFIG = """
defaults: [_self_, {override hydra/launcher: process}]
heads: 1
does: nothing
status: done
text: ""
task: other
training: {max_steps: 1000}
trainer: {accelerator: auto, devices: 1}
hydra:
  sweep: {dir: sweep, subdir: "heads=${heads}"}
  launcher: {stop_seconds: 60}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A project with the run script above, its config, and a space and a quotation mark in its path."""
    project = tmp_path / "it's here"
    (project / "conf").mkdir(parents=True)
    (project / "run.py").write_text(RUN)
    (project / "conf" / "config.yaml").write_text(CONFIG)
    yield project
    stop_sweep(project / "sweep")  # where a test has failed


def start(folder: Path, *arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "run.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100", "HYDRA_FULL_ERROR": "1", **environment},
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        # As in a terminal: what runs in the background, under nohup for one, hands ignored signals down.
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)],
    )


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    process = start(folder, *arguments, **environment)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def seen(folder: Path, heads: int) -> dict:
    return json.loads((folder / "sweep" / f"heads={heads}" / "seen.json").read_text())


def times(folder: Path, heads: int) -> int:
    return (folder / "sweep" / f"heads={heads}" / "times").read_text().count("started")


def rows(output: str) -> dict[str, list[str]]:
    """The table at the end: the cells of each row, by the first one."""
    table = [line.split("\u2502") for line in output.splitlines() if "\u2502" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in table}


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and that nobody asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_each_job_is_a_single_run_in_its_folder_of_the_sweep(folder):
    code, output = run(folder, "-m", "heads=2,3")
    assert code == 0
    assert seen(folder, 2)["mode"] == seen(folder, 3)["mode"] == "RUN"
    assert output.index("said by 2") < output.index("said by 3")
    assert "said by 2" in (folder / "sweep" / "heads=2" / "console.log").read_text()
    assert [(cells[STATE], cells[BLEU]) for cells in rows(output).values()] == [("done", "20.25"), ("done", "30.38")]


def test_torch_is_not_loaded_by_the_launcher(folder):
    _, output = run(folder, "-m", "heads=2", "hydra.launcher.parallel=2", "trainer.accelerator=cpu")
    assert output.count("loaded []") == 2  # the job, and the sweep


def test_a_single_run_needs_no_launcher(folder):
    code, output = run(folder, "heads=2", "hydra.run.dir=alone")
    assert code == 0
    assert (folder / "alone" / "seen.json").exists()
    assert not rows(output)


def test_jobs_get_the_overrides_and_flags_of_the_command_line(folder):
    (folder / "more").mkdir()
    (folder / "more" / "other.yaml").write_text("defaults: [config, _self_]\nstatus: from_other\n")
    text = "a=b, 'c' {d} $e"
    flags = ("--config-dir", "more", "--config-name", "other")
    code, output = run(folder, *flags, "-m", "heads=2,3", f'text="{text}"', "hydra.job.name=seven")
    assert code == 0, output
    assert seen(folder, 3)["text"] == text
    assert (folder / "sweep" / "heads=3" / "seven.log").exists()
    assert json.loads((folder / "sweep" / "heads=3" / "result.json").read_text())["status"] == "from_other"


def test_jobs_do_not_take_themselves_for_ranks(folder):
    ranks = {
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_PORT": "7",
        "TORCHELASTIC_RUN_ID": "5",
        "PL_GLOBAL_SEED": "3",
    }
    code, _ = run(folder, "-m", "heads=2", **ranks, KEPT="11")
    assert code == 0
    assert not set(ranks) & set(seen(folder, 2)["environment"])
    assert seen(folder, 2)["environment"]["KEPT"] == "11"


def test_the_same_command_runs_only_what_is_not_done(folder):
    code, output = run(folder, "-m", "heads=2,3", "does=fail")
    assert code == 1
    code, output = run(folder, "-m", "heads=2,3", "does=fail")
    assert code == 1
    assert (times(folder, 2), times(folder, 3)) == (2, 1)
    assert rows(output)["heads=3"] == ["done before", "", "30.38", "", ""]
    assert output.count("said by 2") == 1  # what the first try said is kept, but not shown again
    assert (folder / "sweep" / "heads=2" / "console.log").read_text().count("said by 2") == 2


def test_a_job_whose_config_changed_is_asked_again_unless_only_in_how_it_runs(folder):
    run(folder, "-m", "heads=2")
    run(folder, "-m", "heads=2", "trainer.accelerator=cpu", "hydra.launcher.parallel=2", "+logger.csv=null")
    assert times(folder, 2) == 1
    (folder / "conf" / "config.yaml").write_text(CONFIG.replace('text: ""', "text: other"))
    run(folder, "-m", "heads=2")
    assert times(folder, 2) == 2


def test_a_job_that_left_without_saying_done_is_run_again(folder):
    for _ in range(2):
        run(folder, "-m", "heads=2", "status=running")
    assert times(folder, 2) == 2


def test_a_failed_job_is_reported_and_the_others_run(folder):
    code, output = run(folder, "-m", "heads=2,3", "does=fail")
    assert code == 1
    assert rows(output)["heads=2"][0] == "failed (exit code 1)"
    assert rows(output)["heads=3"][0] == "done"
    console = folder / "sweep" / "heads=2" / "console.log"
    assert f"heads=2 failed (exit code 1): RuntimeError: out of memory; see {console}" in output
    assert "out of memory" in console.read_text()


def test_a_row_that_is_refused_fails_before_any_runs_and_the_others_run(folder):
    train = TRAIN  # without all that a training needs
    code, output = run(folder, "-m", f"task={train},other", "hydra.sweep.subdir=${task}")
    assert code == 1
    assert {row: cells[STATE] for row, cells in rows(output).items()} == {train: "failed (refused)", "other": "done"}
    assert output.index(f"{train} is refused: training.optimizer must name its class") < output.index("said by 1")
    assert (folder / "sweep" / train / "console.log").read_text().startswith("error: training.optimizer must name its")


def test_a_killed_job_is_reported_with_the_signal(folder):
    code, output = run(folder, "-m", "heads=2", "does=die")
    assert code == 1
    assert rows(output)["heads=2"][0] == "failed (SIGKILL)"


def test_ranks_that_outlive_the_first_process_are_ended(folder):
    code, _ = run(folder, "-m", "heads=2,3", "does=leave a rank")
    assert code == 0
    assert not any(is_alive(int((folder / "sweep" / f"heads={heads}" / "rank").read_text())) for heads in (2, 3))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_job_and_the_sweep(folder, number, code):
    process = start(folder, "-m", "heads=2,3", "does=wait")
    await_file(folder / "sweep" / "heads=2" / "waits")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)  # less than the patience with a job that does not obey
    assert process.returncode == code
    assert [cells[0] for cells in rows(output).values()] == ["stopped", "not run"]


@pytest.mark.parametrize("presses", [1, 2])
def test_jobs_that_do_not_obey_are_killed(folder, presses):
    flags = ("hydra.launcher.parallel=2", f"hydra.launcher.stop_seconds={1 if presses == 1 else 100}")
    process = start(folder, "-m", "heads=2,3,5", "does=hang", *flags)
    for heads in (2, 3):
        await_file(folder / "sweep" / f"heads={heads}" / "waits")
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert [cells[STATE] for cells in rows(output).values()] == ["stopped", "stopped", "not run"]
    assert not any(is_alive(seen(folder, heads)["pid"]) for heads in (2, 3))


def test_jobs_run_at_the_same_time_on_their_own_gpus(folder):
    flags = ("hydra.launcher.parallel=2", "trainer.devices=2")
    code, output = run(folder, "-m", "heads=2,3", "does=meet", *flags, CUDA_VISIBLE_DEVICES="4,5,6,7")
    assert code == 0
    assert {seen(folder, heads)["environment"]["CUDA_VISIBLE_DEVICES"] for heads in (2, 3)} == {"4,5", "6,7"}
    assert "\nheads=2 | said by 2\n" in output
    assert [cells[BLEU] for cells in rows(output).values()] == ["20.25", "30.38"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["hydra.launcher.parallel=0"], "launcher.parallel must be at least 1, got 0."),
        (["hydra.launcher.parallel=2", "trainer.devices=2"], "launcher.parallel=2 x trainer.devices=2 is more than"),
    ],
)
def test_more_jobs_at_a_time_than_there_can_be_are_refused_before_any_runs(folder, flags, message):
    code, output = run(folder, "-m", "heads=2,3", *flags, CUDA_VISIBLE_DEVICES="0,1,2")
    assert code == 1
    assert message in output
    assert not (folder / "sweep" / "heads=2").exists()


GPUS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("trainer", "parallel", "gpus", "expected"),
    [
        ({"accelerator": "gpu", "devices": 1}, 2, GPUS, {"CUDA_VISIBLE_DEVICES": "c"}),
        ({"accelerator": "auto", "devices": "auto"}, 2, GPUS, {"CUDA_VISIBLE_DEVICES": "c,d"}),
        ({"accelerator": "auto", "devices": -1}, 5, GPUS, {"CUDA_VISIBLE_DEVICES": "b"}),
        ({"accelerator": "auto", "devices": 2}, 1, GPUS, {}),
        ({"accelerator": "auto", "devices": [3]}, 1, GPUS, {}),
        ({"accelerator": "mps", "devices": 1}, 2, [], {}),
        ({"accelerator": "cpu", "devices": 1}, 1, GPUS, {}),
        ({"accelerator": "cpu", "devices": 1}, 2, GPUS, {"OMP_NUM_THREADS": "3"}),
        ({"accelerator": "cpu", "devices": 3}, 1, GPUS, {"OMP_NUM_THREADS": "2"}),
        ({"accelerator": "auto", "devices": "auto"}, 11, [], {"OMP_NUM_THREADS": "1"}),
    ],
)
def test_a_job_gets_its_share_of_the_devices_or_of_the_cores(monkeypatch, trainer, parallel, gpus, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))
    slot = min(1, parallel - 1)
    assert share(trainer, slot=slot, parallel=parallel, gpus=gpus) == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in share(trainer, slot=slot, parallel=parallel, gpus=gpus)


@pytest.mark.parametrize(("devices", "parallel"), [(3, 2), (6, 1), ("auto", 6), ([0], 2)])
def test_a_share_that_is_not_there_is_refused(devices, parallel):
    with pytest.raises(ValueError, match=f"launcher.parallel={parallel}"):
        share({"accelerator": "gpu", "devices": devices}, slot=0, parallel=parallel, gpus=GPUS)


def test_gpus_are_those_that_the_user_shows_or_that_the_driver_lists(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5,-1,7")
    assert visible_gpus() == ["3", "GPU-5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-2)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-3)'\n")
    driver.chmod(0o755)
    assert visible_gpus() == ["0", "1"]


def test_a_terminal_shows_the_rows_while_they_run(folder):
    ours, theirs = pty.openpty()
    process = start(folder, "-m", "heads=2,3", "does=log", stdout=theirs)
    os.close(theirs)
    shown, pressed = "", False
    with suppress(OSError):  # the terminal's other side is closed
        while select([ours], [], [], 30)[0]:
            shown += os.read(ours, 10_000).decode(errors="replace")
            if "700 / 1,000" in shown and not pressed:
                process.send_signal(signal.SIGINT)
                pressed = True
    if not pressed:
        process.terminate()
    assert process.wait(timeout=30) == 130, shown
    os.close(ours)
    assert "running" in shown
    assert "3.14" in shown
    assert "said by" not in shown
    assert [cells[STATE] for cells in rows(shown[shown.rindex("\u2501\u2547") :]).values()] == ["stopped", "not run"]


def test_one_process_sweeps_in_a_folder_and_another_can_stop_it(folder):
    first = start(folder, "-m", "heads=2,3", "does=wait")
    await_file(folder / "sweep" / "heads=2" / "waits")
    code, output = run(folder, "-m", "heads=2,3")
    assert code == 1
    assert f"is in use by process {first.pid} on" in output
    assert stop_sweep(folder / "sweep").startswith(f"{first.pid} on")
    assert first.wait(timeout=1) == 143
    assert stop_sweep(folder / "sweep") is None


def test_a_killed_sweep_is_no_obstacle(folder):
    killed = start(folder, "-m", "heads=2", "does=wait")
    await_file(folder / "sweep" / "heads=2" / "waits")
    killed.kill()
    killed.wait()
    assert stop_sweep(folder / "sweep") is None
    os.kill(seen(folder, 2)["pid"], signal.SIGKILL)
    code, _ = run(folder, "-m", "heads=2")
    assert code == 0


def test_a_row_that_a_killed_sweep_left_running_is_waited_for(folder):
    row = folder / "sweep" / "heads=2"
    row.mkdir(parents=True)
    with (row / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(folder, "-m", "heads=2")
        line = ""
        while "waiting for it" not in line:
            line = process.stdout.readline()
            assert line, "the sweep ended"
        assert not (row / "seen.json").exists()
    process.communicate(timeout=60)
    assert (process.returncode, times(folder, 2)) == (0, 1)


def test_an_empty_sweep_is_an_error(folder):
    (folder / "conf" / "row").mkdir()
    (folder / "conf" / "row" / "a.yaml").touch()
    code, output = run(folder, "-m", "+row=glob(b*)")
    assert code == 1
    assert "the sweep has no job" in output


def test_two_jobs_in_one_folder_are_refused_before_either_runs(folder):
    code, output = run(folder, "-m", "text=a,b")
    assert code == 1
    assert "hydra.sweep.subdir must differ between the jobs, got 'heads=1'" in output
    assert not (folder / "sweep" / "heads=1").exists()
