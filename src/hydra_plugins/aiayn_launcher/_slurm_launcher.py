"""A Hydra launcher that makes every job of a sweep a job of SLURM, with a task for each of the run's devices.

hydra-submitit-launcher does most of it: it writes the sbatch script, ships the job to the nodes, and puts it back into
the queue when its time is over. What differs here:

- Jobs that an earlier sweep finished are passed over, and those that it left in the queue are waited for.
- A task that fails leaves with an exit code, so that SLURM ends the others, which would wait for it.
- The sweep is over when SLURM has no job of it left, not when each job has answered: one that was killed never does. It
  ends with a table and an exit code, as under `launcher=process`.

Hydra passes over a module with such a name: the package imports it, where the extra `slurm` is installed.
"""

import logging
import os
import pickle
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra_plugins.hydra_submitit_launcher import submitit_launcher
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf, SlurmQueueConf

from aiayn.files import absolute
from hydra_plugins.aiayn_launcher.jobs import Job, compose, finish, is_passed_over, progress_of, refuse

if TYPE_CHECKING:
    from aiayn.runs.sweep import Progress

log = logging.getLogger(__name__)

UNFINISHED = ("queued", "running")
LONGEST_PAUSE = 30.0  # seconds between two looks at the queue


@dataclass
class SlurmLauncherConfig(SlurmQueueConf):
    """`hydra/launcher=slurm`: what hydra-submitit-launcher lets one ask for."""

    _target_: str = "hydra_plugins.aiayn_launcher._slurm_launcher.SlurmLauncher"
    tasks_per_node: Any = 1  # what is no number is refused later, when it is clear that jobs will be launched
    gpus_per_node: Any = None


ConfigStore.instance().store(group="hydra/launcher", name="slurm", node=SlurmLauncherConfig, provider="aiayn")


class SlurmLauncher(submitit_launcher.SlurmLauncher):
    """Submit the jobs of a sweep as one array, and wait until the last one has left the queue."""

    def __call__(self, *args: Any, **kwargs: Any) -> JobReturn:
        """Run a job, as one of its tasks on a node; raises what it raised."""
        job_return = super().__call__(*args, **kwargs)
        _ = job_return.return_value
        return job_return

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and show a table of them; leave with 1 if one failed.

        Raises:
            ValueError: if there is no SLURM, or it refuses the jobs; if there is no job, two jobs have the same folder,
                or another process sweeps in the folder.
        """
        from aiayn.runs.sweep import lock_sweep

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = compose(self.hydra_context, self.config, job_overrides, initial_job_idx)
        if any(override.startswith("run_dir=") for override in jobs[0].overrides):
            raise ValueError("run_dir=... names the folder of a single run, and launcher=slurm sweeps; leave it out.")
        self.parameters()  # refused before anything is looked at
        if not all(map(shutil.which, ("sbatch", "srun", "squeue"))):
            raise ValueError("launcher=slurm finds no sbatch, srun and squeue here; start it on a login node.")
        rows = progress_of(jobs, "queued")
        with lock_sweep(absolute(str(self.config.hydra.sweep.dir))):
            queued = queue()
            if queued is None:
                raise ValueError("squeue gives no answer; see whether SLURM runs.")
            refuse(jobs, rows)
            missing: dict[int, Job] = {}
            for number, (job, row) in enumerate(zip(jobs, rows, strict=True), start=initial_job_idx):
                if slurm_id(job.folder) in queued:
                    continue
                if row.state == "queued" and not is_passed_over(row):
                    missing[number] = job
            if missing:
                self._submit(missing)
            await_rows(rows)
        return finish(jobs, rows)

    def parameters(self) -> dict[str, Any]:
        """What sbatch is asked for, in the words of hydra-submitit-launcher.

        Raises:
            ValueError: if the trainer does not say how many devices it wants.
        """
        devices = self.params["tasks_per_node"]
        if not isinstance(devices, int) or devices < 1:
            raise ValueError(
                f"trainer.devices must be the number of a node's devices with launcher=slurm, got {devices}; "
                f"give trainer=ddp trainer.devices=8, or trainer.devices=1."
            )
        return self.params | ({"gpus_per_node": None} if self.config.trainer.accelerator == "cpu" else {})

    def _submit(self, jobs: dict[int, Job]) -> None:
        """Hand jobs, by number, to SLURM as one array; a link in each folder leads to what its first task prints."""
        from submitit import AutoExecutor  # here, since Hydra imports this module at every start
        from submitit.core.utils import FailedJobError

        parameters = self.parameters()
        executor = AutoExecutor(
            cluster="slurm",
            folder=parameters.pop("submitit_folder"),
            slurm_max_num_timeout=parameters.pop("max_num_timeout"),
        )
        general = BaseQueueConf.__dataclass_fields__
        executor.update_parameters(**{key if key in general else f"slurm_{key}": parameters[key] for key in parameters})
        state = Singleton.get_state()
        calls = [(job.overrides, "hydra.sweep.dir", number, f"job_{number}", state) for number, job in jobs.items()]
        try:
            submitted = executor.map_array(self, *zip(*calls, strict=True))
        except FailedJobError as error:
            raise ValueError(" ".join(str(error).split())) from error
        for job, slurm_job in zip(jobs.values(), submitted, strict=True):
            output = slurm_job.task(0).paths.stdout
            output.parent.mkdir(parents=True, exist_ok=True)
            job.folder.mkdir(parents=True, exist_ok=True)
            console(job.folder).unlink(missing_ok=True)
            console(job.folder).symlink_to(os.path.relpath(output, job.folder))


def await_rows(rows: list["Progress"]) -> None:
    """Wait until SLURM has none of the queued jobs left, and write into the rows what became of them."""
    pause = 1.0
    try:
        for row in rows:
            log.info("%s: %s; %s", row.name, row.state, row.run.folder)
        while waiting := [row for row in rows if row.state in UNFINISHED]:
            time.sleep(pause)
            pause = min(1.1 * pause, LONGEST_PAUSE)
            queued = queue()
            for row in waiting if queued is not None else []:
                before, now = row.state, (queued or {}).get(slurm_id(row.run.folder))
                if now is None:
                    end(row)
                elif now == "PENDING":
                    row.state = "queued"
                elif before == "queued":
                    row.begin()
                if row.state != before:
                    log.info("%s: %s", row.name, row.state)
    except KeyboardInterrupt:
        ids = sorted({slurm_id(row.run.folder).split("_")[0] for row in rows if row.state in UNFINISHED})
        log.warning("the jobs go on: `scancel %s` ends them, and the same command waits for them", " ".join(ids))
        raise SystemExit(130) from None


def last_words(traceback: str) -> str:
    """What an error says, without the key that Hydra puts on a line behind it."""
    return [line for line in traceback.strip().splitlines() if not line.startswith("full_key: ")][-1]


def end(row: "Progress") -> None:
    """Write into a row how its job ended, and on its console why it failed.

    Each task writes ("success", value) or ("error", traceback) when it ends, anew after it was put back into the queue;
    one that was killed writes nothing.
    """
    output = console(row.run.folder).resolve()
    job = output.parent.name
    answers = {}
    for file in sorted(output.parent.glob(f"{job}_*_result.pkl")):
        with suppress(OSError, EOFError):
            answers[file.name] = pickle.loads(file.read_bytes())
    errors = [last_words(str(value)) for outcome, value in answers.values() if outcome == "error"]
    if row.state == "queued":  # it was too fast to be seen running
        row.begin()
    if f"{job}_0_result.pkl" in answers and not errors:  # the first task evaluates when the others have left
        row.end("done")
        return
    row.end("failed")
    reason = errors[0] if errors else f"job {job} was cancelled or killed, or ran out of time too often"
    with output.open("a") as lines:
        lines.write(f"error: {reason.removeprefix('ValueError: ')}\n")


def queue() -> dict[str, str] | None:
    """State of this user's jobs that SLURM has not finished with, by id (`17`, `17_0`); None without an answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
    with suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        return dict(line.split() for line in lines)
    return None


def slurm_id(folder: Path) -> str:
    """Id of the job that was submitted last for a run's folder; empty if none was."""
    with suppress(OSError):
        return console(folder).readlink().parent.name
    return ""


def console(folder: Path) -> Path:
    """Where a job's output is found."""
    from aiayn.runs.run import CONSOLE

    return folder / CONSOLE
