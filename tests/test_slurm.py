"""launcher=slurm: what is asked of stand-ins for SLURM, and whole runs on a cluster that is started here."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import SMALL, command, environment
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.launcher import Launcher
from hydra.utils import instantiate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
# sbatch keeps the script that it is handed, and puts its job into a queue that squeue shows and that nobody works on.
STAND_INS = {
    "sbatch": 'cp "$1" "$SLURM/script.$(ls "$SLURM" | wc -l)" && echo "7 PENDING" > "$SLURM/queue"\n'
    'echo "Submitted batch job 7"',
    "squeue": 'cat "$SLURM/queue"; : > "$SLURM/queue"',
    "srun": "",
}
REFUSES = 'echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1'


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with the stand-ins in bin/, the queue, and the scripts that sbatch got."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "queue").touch()
    for name, script in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def start(slurm: Path, *arguments: str, path: str = "/usr/bin:/bin") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("launcher=slurm", f"outputs={slurm / 'outputs'}", *arguments),
        env={**environment(), "PATH": f"{slurm / 'bin'}:{path}", "SLURM": str(slurm)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as in a terminal
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def scripts(slurm: Path) -> list[str]:
    return [path.read_text() for path in sorted(slurm.glob("script.*"))]


def test_sbatch_is_asked_for_a_task_and_a_gpu_for_each_device(slurm: Path) -> None:
    choices = (
        "partition=fast",
        "account=us",
        "timeout_min=90",
        "cpus_per_task=7",
        "parallel=3",
        "setup='module load x'",
    )
    code, output = finish(
        start(
            slurm,
            "sweep=table3_a",
            "trainer=ddp",
            "trainer.devices=8",
            "trainer.num_nodes=4",
            *(f"launcher.{choice}" for choice in choices),
        )
    )
    (script,) = scripts(slurm)
    asked = {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert {"nodes=4", "ntasks-per-node=8", "gpus-per-node=8", "requeue", "signal=USR2@120"} <= asked
    assert {"partition=fast", "account=us", "time=90", "cpus-per-task=7", "array=0-4%3"} <= asked
    assert not any(option.startswith(("qos", "mem")) for option in asked)
    before_srun = script[: script.index("\nsrun ")]
    assert f'export PYTHONPATH="{ROOT / "src"}:$PYTHONPATH"' in before_srun
    assert "\nmodule load x\n" in before_srun
    assert "\nexport SLURM_KILL_BAD_EXIT=1\n" in before_srun
    # Nobody worked on the jobs, which a sweep must notice.
    assert code == 1
    assert output.count("failed: job 7_") == 5


def launcher(*overrides: str) -> Launcher:
    """What a command line launches its jobs with."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=["launcher=slurm", *overrides], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    made = instantiate(cfg.hydra.launcher)
    made.config = cfg
    return made


@pytest.mark.parametrize(
    ("overrides", "tasks", "gpus"),
    [
        (["trainer=cpu"], 1, None),
        (["trainer=ddp_cpu"], 2, None),
        (["trainer=ddp", "trainer.devices=3"], 3, 3),
        (["trainer.devices=1"], 1, 1),
    ],
)
def test_a_device_is_a_task_and_a_trainer_on_the_cpu_asks_for_no_gpu(
    overrides: list[str], tasks: int, gpus: int | None
) -> None:
    asked = launcher(*overrides).parameters()
    assert (asked["tasks_per_node"], asked["gpus_per_node"]) == (tasks, gpus)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trainer=auto"], ["trainer.devices", "auto", "trainer=ddp trainer.devices=8"]),
        (["trainer=cpu", "run_dir=here"], ["run_dir"]),
        (["trainer=cpu", "launcher.partition=nowhere"], ["invalid partition specified: nowhere"]),
    ],
)
def test_a_mistake_is_one_clear_line(slurm: Path, arguments: list[str], words: list[str]) -> None:
    (slurm / "bin" / "sbatch").write_text(f"#!/bin/sh\n{REFUSES}\n")
    code, output = finish(start(slurm, *arguments))
    assert code == 1
    assert "Traceback" not in output
    last = output.splitlines()[-1]
    assert last.startswith("error: ")
    assert all(word in last for word in words), last


def test_without_slurm_it_says_so(slurm: Path) -> None:
    (slurm / "bin" / "squeue").unlink()
    code, output = finish(start(slurm, "trainer=cpu", path=""))
    assert code == 1
    assert output.splitlines()[-1].startswith("error: launcher=slurm finds no sbatch, srun and squeue")


def test_jobs_outlive_the_sweep_and_the_same_command_waits_for_them(slurm: Path) -> None:
    (slurm / "bin" / "squeue").write_text('#!/bin/sh\ncat "$SLURM/queue"\n')  # the job stays until the test removes it
    process = start(slurm, "trainer=cpu")
    assert process.stdout is not None
    assert "queued" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130
    assert "scancel 7" in output
    process = start(slurm, "trainer=cpu")
    assert process.stdout is not None
    assert "queued" in process.stdout.readline()
    (slurm / "queue").write_text("")
    code, output = finish(process)
    assert code == 1
    assert "job 7 was cancelled" in output
    assert len(scripts(slurm)) == 1


def test_tasks_that_look_at_a_sweep_still_launch_nothing() -> None:
    assert type(launcher("task=plan")).__name__ == "OverviewLauncher"


# A cluster of two nodes, both on this machine. `cred_expire` is also how long a requeued job has to wait.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
KillWait=5
ReturnToService=2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
"""
DAEMONS = [
    "munged --foreground --force --key-file={folder}/key --socket={folder}/munge.socket --pid-file={folder}/munged.pid "
    "--log-file={folder}/munged.log --seed-file={folder}/seed",
    "slurmctld -D",
    "slurmd -D -N node0",
    "slurmd -D -N node1",
]


def await_that(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Cluster:
    """The programs of a running cluster, and runs on it."""

    def __init__(self, folder: Path, outputs: Path) -> None:
        self.folder, self.outputs = folder, outputs
        self.environment = {**environment(), "SLURM_CONF": str(folder / "slurm.conf"), "COLUMNS": "200"}

    def call(self, *arguments: str) -> str:
        return subprocess.run(arguments, env=self.environment, capture_output=True, text=True, timeout=30).stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        setup = "launcher.setup='export MASTER_ADDR=127.0.0.1'"  # the nodes' names lead nowhere
        return subprocess.Popen(
            command(
                *SMALL, f"outputs={self.outputs}", "launcher=slurm", setup, "hydra.sweep.dir=${outputs}", *arguments
            ),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def cluster(outputs: Path) -> Iterator[Cluster]:
    """Start the daemons of a cluster, and end them when the tests have run."""
    missing = [daemon for daemon in ("munged", "slurmctld", "slurmd") if not shutil.which(daemon)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed (Debian: apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("SLURM's daemons want to be started by root")
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as name,
        ExitStack() as stack,
    ):  # the name of a socket has to be short
        folder = Path(name)
        running = Cluster(folder, outputs)
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        settings = {"folder": folder, "host": socket.gethostname().split(".")[0], "ports": free_ports(3)}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**settings))
        for number, daemon in enumerate(DAEMONS):
            log = stack.enter_context((folder / f"{number}.log").open("w"))
            process = subprocess.Popen(
                daemon.format(folder=folder).split(),
                env=running.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if number == 0:
                await_that((folder / "munge.socket").exists, "munged's start")
        await_that(lambda: running.call("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], "the cluster's start")
        yield running
        running.call("scancel", "--user=root")
        await_that(lambda: not running.call("squeue", "-h"), "the end of all jobs")


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


LONG = ("training.max_steps=200", "training.validate_steps=200", "training.checkpoint_steps=10")  # to be interrupted


def test_two_nodes_whose_time_is_over_go_on_in_the_same_folder(cluster: Cluster) -> None:
    own = (f"--config-dir={ROOT / 'tests' / 'extension' / 'conf'}", "callbacks=shrink")  # a module beside it
    shape = (*own, "trainer=ddp_cpu", "trainer.devices=1", "trainer.num_nodes=2")
    process = cluster.start(*shape, *LONG, "hydra.sweep.subdir=nodes")
    folder = cluster.outputs / "nodes"
    await_that(lambda: any(folder.glob("checkpoints/step_*.ckpt")), "the first checkpoint")
    (job,) = cluster.call("squeue", "-h", "-o", "%i").split()
    cluster.call("scancel", "--signal=USR2", job)  # what SLURM sends before it ends a job
    code, output = finish(process)
    assert code == 0, output
    assert (result(folder)["status"], result(folder)["steps"], result(folder)["world_size"]) == ("done", 200, 2)
    assert ", resumed from step_" in (folder / "console.log").read_text()
    code, output = finish(cluster.start(*shape, *LONG, "hydra.sweep.subdir=nodes"))
    assert code == 0, output
    assert "done before" in output


def test_a_requeued_job_of_two_tasks_finishes_and_a_failed_one_is_reported(cluster: Cluster) -> None:
    process = cluster.start(
        "-m", "trainer=ddp_cpu", *LONG, "data.corpus.test=13,0", "hydra.sweep.subdir=test${data.corpus.test}"
    )
    folder = cluster.outputs / "test13"
    await_that(lambda: any(folder.glob("checkpoints/step_*.ckpt")), "the first checkpoint")
    first = cluster.call("squeue", "-h", "--array", "-o", "%i").split("_")[0]
    cluster.call("scontrol", "requeue", f"{first}_0")
    code, output = finish(process)
    assert code == 1
    assert (result(folder)["status"], result(folder)["steps"], result(folder)["world_size"]) == ("done", 200, 2), output
    assert ", resumed from step_" in (folder / "console.log").read_text()
    assert output.splitlines()[-1].startswith("test=0 failed: ")
    assert "The generated corpus has 1 to 1000000 pairs in a split, got 0 in test." in output.splitlines()[-1]
    assert "Traceback" not in output
