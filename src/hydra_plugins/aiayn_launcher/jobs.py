"""The jobs of a sweep: which row each one is, in which folder, with which config."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from aiayn.errors import FORESEEN, explain
from aiayn.files import absolute
from aiayn.identity import differing
from aiayn.paths import make_absolute
from aiayn.schema import check_run

if TYPE_CHECKING:  # what a sweep alone needs is imported when it starts, since Hydra imports this module every time
    from aiayn.runs.run import Run
    from aiayn.runs.sweep import Progress

log = logging.getLogger(__name__)


class Sweeper(basic_sweeper.BasicSweeper):
    """Hydra's own, which composes every job to see whether it can; the launchers here do that at once by themselves."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        pass


@dataclass
class Job:
    """A run of the sweep.

    Attributes:
        row: Its name in the sweep.
        folder: Of the run.
        overrides: Of this job alone and of the whole sweep.
        config: Without Hydra's own part; not resolved, as Hydra will save it.
    """

    row: str
    folder: Path
    overrides: list[str]
    config: DictConfig


def compose(context: HydraContext, sweep: DictConfig, overrides: Sequence[Sequence[str]], first: int) -> list[Job]:
    """Compose the jobs of a sweep.

    Args:
        context: Hydra's.
        sweep: The config of the sweep itself.
        overrides: Of each job.
        first: Number of the first job.

    Raises:
        ValueError: if there is no job, or two jobs have the same folder.
    """
    if not overrides:
        raise ValueError("the sweep has no job, got no value for a swept key; does a glob() match nothing?")
    jobs: dict[Path, Job] = {}
    for number, of_job in enumerate(map(list, overrides), start=first):
        config = context.config_loader.load_sweep_config(sweep, of_job)
        with open_dict(config):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)  # what ${hydra:...} in the name of the folder reads
        row = str(config.hydra.sweep.subdir)
        folder = absolute(str(sweep.hydra.sweep.dir)) / row
        with open_dict(config):
            del config["hydra"]
        with suppress(OmegaConfBaseException):  # a config that cannot be resolved says so when it is used
            make_absolute(config)
        if folder in jobs:
            raise ValueError(
                f"hydra.sweep.subdir must differ between the jobs, got {row!r} for {jobs[folder].overrides} "
                f"and for {of_job}; name a swept key in it."
            )
        jobs[folder] = Job(row, folder, of_job, config)
    return list(jobs.values())


def progress_of(jobs: Sequence[Job], state: str) -> list["Progress"]:
    """How far each job is, all of them in `state` at first."""
    from aiayn.runs.run import Run, names_of, resolved
    from aiayn.runs.sweep import Progress

    runs = [Run.read(job.folder, row=job.row, config=resolved(job.config)) for job in jobs]
    return [Progress(run, state, name) for run, name in zip(runs, names_of(runs), strict=True)]


def refuse(jobs: Sequence[Job], rows: Sequence["Progress"]) -> None:
    """Let the rows that would be refused fail before any is launched, each on its console; the others are to run."""
    from aiayn.runs.run import CONSOLE

    reasons: dict[str, list[str]] = {}
    for job, row in zip(jobs, rows, strict=True):
        try:
            check_run(job.config, job.folder)
        except FORESEEN as error:
            reasons.setdefault(explain(error), []).append(row.name)
            job.folder.mkdir(parents=True, exist_ok=True)
            with (job.folder / CONSOLE).open("a") as lines:
                lines.write(f"error: {explain(error)}\n")
            row.begin()
            row.end("failed (refused)")
    for reason, names in reasons.items():
        log.warning("%s %s refused: %s", ", ".join(names), "is" if len(names) == 1 else "are", reason)


def is_done(run: "Run") -> bool:
    """Whether this very job was finished before; with another config in its folder, the run judges when it starts."""
    theirs = run.result.get("composed", run.result.get("config"))  # an evaluation's config is that of its checkpoint
    return (
        run.result.get("status") == "done"
        and isinstance(theirs, dict)
        and run.config.get("task") == theirs.get("task")
        and not differing(run.config, theirs)
    )


def is_passed_over(row: "Progress") -> bool:
    """Whether a job need not run; its row then says so, and whether anything has changed since it was done."""
    if not is_done(row.run) or (row.run.changed and row.run.config.get("force")):
        return False
    row.state = row.run.stale or "done before"
    return True


def finish(jobs: Sequence[Job], rows: Sequence["Progress"]) -> list[JobReturn]:
    """Show what became of the jobs, and leave with 1 if one failed; else what Hydra wants to know of them."""
    from aiayn.runs.sweep import show

    show(rows)
    if any(row.state.startswith("failed") for row in rows):
        raise SystemExit(1)
    return [
        JobReturn(
            job.overrides,
            status=JobStatus.COMPLETED,
            _return_value=row.run.score("averaged", "dev", str(row.run.config.get("objective"))),
        )
        for job, row in zip(jobs, rows, strict=True)
    ]
