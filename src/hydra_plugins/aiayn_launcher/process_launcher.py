"""A Hydra launcher that gives every job of a sweep a process of its own.

Lightning starts the ranks of a run by starting the command line again. Inside a sweep that would repeat the whole
sweep in every rank, and what a job leaves in its process (memory, threads, process groups, random states) would reach
the next one. Hence each job here is `run.py` in single-run mode with the job's overrides, in its folder of the sweep.
Jobs that an earlier sweep finished are passed over, so the same command finishes a half-done sweep, and a failed job
does not stop the others.

torch is never imported: the sweeping process only starts others and shows what they print.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, TextIO

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from aiayn.files import absolute
from hydra_plugins.aiayn_launcher.devices import share, visible_gpus
from hydra_plugins.aiayn_launcher.jobs import Job, compose, finish, is_passed_over, progress_of, refuse
from hydra_plugins.aiayn_launcher.process import received_signals, run_process

if TYPE_CHECKING:  # what a sweep alone needs is imported when it starts, since Hydra imports this module every time
    from aiayn.runs.sweep import Progress

log = logging.getLogger(__name__)

SECONDS = 1.0  # between two looks of the table on a terminal


@dataclass
class ProcessLauncherConfig:
    """`hydra/launcher=process`."""

    _target_: str = "hydra_plugins.aiayn_launcher.process_launcher.ProcessLauncher"
    parallel: int = 1  # jobs at a time
    stop_seconds: float = 30.0  # from asking the processes of a job to end until they are killed


ConfigStore.instance().store(group="hydra/launcher", name="process", node=ProcessLauncherConfig, provider="aiayn")


class ProcessLauncher(Launcher):
    """Run the jobs of a sweep, `parallel` at a time, each in its own process."""

    def __init__(self, parallel: int, stop_seconds: float) -> None:
        self.parallel = parallel
        self.stop_seconds = stop_seconds
        self.lock: TextIO | None = None
        self.printing = threading.Lock()
        self.terminal = sys.stdout.isatty()  # there a table shows the rows, elsewhere lines do

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and show a table of them; leave with 1 if one failed, or with the code of a signal that came.

        Raises:
            ValueError: if there is no job, two jobs have the same folder, there are not enough devices for so many at
                a time, or another process sweeps in the folder.
        """
        from aiayn.runs.sweep import lock_sweep, show

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = compose(self.hydra_context, self.config, job_overrides, initial_job_idx)
        rows = progress_of(jobs, "not run")
        if self.parallel < 1:
            raise ValueError(f"launcher.parallel must be at least 1, got {self.parallel}.")
        gpus = visible_gpus()
        for row in rows:  # what does not fit is refused before any job runs
            share(row.run.config.get("trainer", {}), slot=0, parallel=self.parallel, gpus=gpus)
        # Kept until this process ends, since a sweeper may launch several times.
        self.lock = self.lock or lock_sweep(absolute(str(self.config.hydra.sweep.dir)))
        refuse(jobs, rows)
        with received_signals() as signals:
            self._run_all(jobs, rows, gpus, signals)
        if signals:
            show(rows)
            raise SystemExit(128 + signals[0])  # what a shell says of a command that a signal ended; 130 after Ctrl-C
        return finish(jobs, rows)

    def _run_all(self, jobs: list[Job], rows: list["Progress"], gpus: list[str], signals: list[int]) -> None:
        """Run the jobs, each waited for by a thread; this one receives the signals, and shows the table."""
        from aiayn.runs.sweep import live

        slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(min(self.parallel, len(jobs))):
            slots.put(slot)

        def run(number: int, job: Job, row: "Progress") -> None:
            slot = slots.get()
            try:
                if not signals:
                    trainer = row.run.config.get("trainer", {})
                    environment = share(trainer, slot=slot, parallel=self.parallel, gpus=gpus)
                    self._run(job, row, f"[{number}/{len(jobs)}] {row.name}", environment, signals)
            finally:
                slots.put(slot)

        with ThreadPoolExecutor(min(self.parallel, len(jobs))) as pool:
            numbered = zip(range(1, len(jobs) + 1), jobs, rows, strict=True)
            runs = [pool.submit(run, *job) for job in numbered if job[-1].state == "not run"]
            try:
                with live(rows) if self.terminal else nullcontext() as update:
                    while wait(runs, timeout=SECONDS).not_done:
                        if update:
                            update()
            except BaseException:
                signals.append(signal.SIGTERM)  # else the pool would wait until all jobs have run
                raise
        for ended in runs:
            ended.result()

    def _run(self, job: Job, row: "Progress", title: str, environment: dict[str, str], signals: list[int]) -> None:
        """Run a job, unless this very job was finished before; with another config in its folder, the run judges."""
        from aiayn.runs.run import CONSOLE

        level = logging.DEBUG if self.terminal else logging.INFO
        row.refresh()
        if row.run.state == "running":
            log.log(level, "%s is run by another process, as after a sweep that was killed: waiting for it", title)
            row.state = "waiting"
            while row.run.state == "running" and not signals:
                time.sleep(SECONDS)
                row.refresh()
            row.state = "not run"
            if signals:
                return
        if is_passed_over(row):
            log.log(level, "%s is %s; see %s", title, row.run.stale or "done", job.folder)
            return
        log.log(level, "%s: %s", title, job.folder)
        row.begin()
        code = run_process(
            self._command(job),
            job.folder / CONSOLE,
            environment=environment,
            show=self._shower(row.name),
            signals=signals,
            stop_seconds=self.stop_seconds,
        )
        if signals:
            row.end("stopped")
        elif code == 0:
            row.end("done")
        else:
            row.end(f"failed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})")
            log.log(level, "%s %s; its output is in %s", title, row.state, job.folder / CONSOLE)

    def _shower(self, name: str) -> Callable[[bytes], None]:
        """Print a job's lines: on a terminal not at all, with its name where those of several jobs mix."""
        prefix = f"{name} | ".encode() if self.parallel > 1 else b""

        def show(text: bytes) -> None:
            with self.printing, suppress(OSError):  # a job need not end because nobody listens any more
                sys.stdout.buffer.write(b"".join(prefix + line for line in text.splitlines(keepends=True)))
                sys.stdout.flush()

        return (lambda _: None) if self.terminal else show

    def _command(self, job: Job) -> list[str]:
        hydra = self.config.hydra
        flags = {"main": "--config-path", "command-line": "--config-dir"}
        return [
            sys.executable,
            os.path.abspath(sys.argv[0]),
            f"--config-name={hydra.job.config_name}",
            *(
                f"{flags[source.provider]}={source.path}"
                for source in hydra.runtime.config_sources
                if source.provider in flags and source.schema == "file"
            ),
            *hydra.overrides.hydra,
            *job.overrides,
            "hydra.mode=RUN",
            f"hydra.run.dir={QuotedString(str(job.folder), Quote.single).with_quotes()}",
        ]
