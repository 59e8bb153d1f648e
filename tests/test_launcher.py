"""The launcher of sweeps, with a run script that takes no time: what it runs, skips, reports, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# Writes down how it was called; `does` says what it does then.
RUN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    folder = Path(HydraConfig.get().runtime.output_dir)
    seen = dict(environment=dict(os.environ), arguments=sys.argv[1:], mode=HydraConfig.get().mode.name, text=cfg.text)
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
    if cfg.does in ("wait", "hang"):
        (folder / "waits").touch()
        time.sleep(600)
    scores = {"averaged": {"dev": {"bleu": {"value": 10.127 * cfg.heads}}}}
    (folder / "result.json").write_text(json.dumps({"status": cfg.status, "scores": scores}))


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
hydra:
  sweep: {dir: sweep, subdir: "heads=${heads}"}
  launcher: {stop_seconds: 60}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the run script above, its config, and a space and a quotation mark in its path."""
    project = tmp_path / "it's here"
    (project / "conf").mkdir(parents=True)
    (project / "run.py").write_text(RUN)
    (project / "conf" / "config.yaml").write_text(CONFIG)
    return project


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "run.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
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
    table = [line.strip().strip("\u2502").split("\u2502") for line in output.splitlines() if line.startswith("\u2502")]
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
    assert [(cells[0], cells[2]) for cells in rows(output).values()] == [("done", "20.25"), ("done", "30.38")]


def test_torch_is_not_loaded_by_the_launcher(folder):
    _, output = run(folder, "-m", "heads=2")
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
    assert rows(output)["heads=3"] == ["done before", "", "30.38"]
    assert output.count("said by 2") == 1  # what the first try said is kept, but not shown again
    assert (folder / "sweep" / "heads=2" / "console.log").read_text().count("said by 2") == 2


def test_a_job_whose_config_changed_is_asked_again(folder):
    run(folder, "-m", "heads=2")
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
    assert "out of memory" in output
    assert "out of memory" in (folder / "sweep" / "heads=2" / "console.log").read_text()


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
def test_a_job_that_does_not_obey_is_killed(folder, presses):
    patience = 2 if presses == 1 else 100
    process = start(folder, "-m", "heads=2", "does=hang", f"hydra.launcher.stop_seconds={patience}")
    await_file(folder / "sweep" / "heads=2" / "waits")
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=10)
    assert process.returncode == 130


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
