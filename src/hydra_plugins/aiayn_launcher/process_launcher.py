"""A Hydra launcher that gives every job of a sweep a process of its own.

Lightning starts the ranks of a run by starting the command line again. Inside a sweep that would repeat the whole
sweep in every rank, and what a job leaves in its process (memory, threads, process groups, random states) would reach
the next one. Hence each job here is `run.py` in single-run mode with the job's overrides, in its folder of the sweep.
Jobs that an earlier sweep finished are passed over, so the same command finishes a half-done sweep, and a failed job
does not stop the others.

torch is never imported: the sweeping process only starts others and shows what they print.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.aiayn_launcher.jobs import Job, compose

log = logging.getLogger(__name__)

CONSOLE = "console.log"  # beside the run's own log: all that its processes print, tracebacks too
DEV_BLEU = ("scores", "averaged", "dev", "bleu", "value")  # where result.json has it
PAUSE = 0.1  # seconds between two looks at a job

# A process that finds these takes itself for one rank among several, instead of starting its own ranks.
RANK_VARIABLES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
}


@dataclass
class ProcessLauncherConfig:
    """`hydra/launcher=process`."""

    _target_: str = "hydra_plugins.aiayn_launcher.process_launcher.ProcessLauncher"
    parallel: int = 1  # jobs at a time
    stop_seconds: float = 30.0  # from asking the processes of a job to end until they are killed


ConfigStore.instance().store(group="hydra/launcher", name="process", node=ProcessLauncherConfig, provider="aiayn")


@dataclass
class Row:
    """A job of the sweep, and what became of it."""

    job: Job
    state: str = "not run"
    seconds: float | None = None

    def result(self) -> dict[str, Any]:
        """What the run wrote about itself, or nothing."""
        with suppress(OSError, ValueError, TypeError):
            return dict(json.loads((self.job.folder / "result.json").read_text(encoding="utf-8")))
        return {}

    def is_done(self) -> bool:
        """Whether this very job was finished before; with another config in its folder, the run has to judge."""
        config = self.job.folder / ".hydra" / "config.yaml"
        return (
            self.result().get("status") == "done"
            and config.exists()
            and config.read_text(encoding="utf-8") == OmegaConf.to_yaml(self.job.config)
        )

    def dev_bleu(self) -> float | None:
        """The run's BLEU on the dev set, if it has one."""
        value: Any = self.result()
        for key in DEV_BLEU:
            value = value.get(key) if isinstance(value, dict) else None
        return value


class ProcessLauncher(Launcher):
    """Run the jobs of a sweep one after the other, each in its own process."""

    def __init__(self, parallel: int, stop_seconds: float) -> None:
        self.stop_seconds = stop_seconds

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and show a table of them; leave with 1 if one failed, or with the code of a signal that came.

        Raises:
            ValueError: if there is no job, or two jobs have the same folder.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = compose(self.hydra_context, self.config, job_overrides, initial_job_idx)
        rows = [Row(job) for job in jobs]
        with received_signals() as signals:
            for number, row in enumerate(rows, start=1):
                if signals:
                    break
                self._run(row, f"[{number}/{len(rows)}] {row.job.row}", signals)
        show(rows)
        if signals:
            raise SystemExit(128 + signals[0])  # what a shell says of a command that a signal ended; 130 after Ctrl-C
        if any(row.state.startswith("failed") for row in rows):
            raise SystemExit(1)
        return [JobReturn(row.job.overrides, status=JobStatus.COMPLETED, _return_value=row.dev_bleu()) for row in rows]

    def _run(self, row: Row, title: str, signals: list[int]) -> None:
        folder = row.job.folder
        if row.is_done():
            row.state = "done before"
            log.info("%s is done; see %s", title, folder)
            return
        log.info("%s: %s", title, folder)
        start = time.monotonic()
        code = run_process(self._command(row.job), folder, signals=signals, stop_seconds=self.stop_seconds)
        row.seconds = time.monotonic() - start
        if signals:
            row.state = "stopped"
        elif code == 0:
            row.state = "done"
        else:
            row.state = f"failed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
            log.error("%s %s; its output is in %s", title, row.state, folder / CONSOLE)

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


@contextmanager
def received_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of obeying them before the jobs have ended."""
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda received, _: signals.append(received))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_process(command: list[str], folder: Path, *, signals: list[int], stop_seconds: float) -> int:
    """Run a command with its output in `folder` and on the terminal, until it ends or a signal arrives.

    Args:
        command: Program and arguments.
        folder: Where the output is appended; made when it is missing.
        signals: Filled by whoever receives them; the first ends the command, the second kills it.
        stop_seconds: From asking the command to end until it is killed.

    Returns:
        Its exit code; negative for the signal that ended it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    environment = {name: value for name, value in environment.items() if not name.startswith("TORCHELASTIC_")}
    environment["PYTHONUNBUFFERED"] = "1"  # else its lines arrive a buffer at a time
    # A file and not a pipe: a rank that outlives the first process would hold a pipe open, and the sweep would wait.
    with (folder / CONSOLE).open("ab") as output, (folder / CONSOLE).open("rb") as console:
        console.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so Ctrl-C reaches this process alone, and the ranks can be signalled together
        )
        try:
            running = True
            while running and not signals:
                running = process.poll() is None  # asked before reading, so that the last words are read too
                sys.stdout.buffer.write(console.read())
                sys.stdout.flush()
                time.sleep(PAUSE if running else 0)
        finally:
            end_group(process, signals=signals, stop_seconds=stop_seconds)
    return process.returncode


def end_group(process: subprocess.Popen[bytes], *, signals: list[int], stop_seconds: float) -> None:
    """End a process and all that it started, also when it has ended itself: its ranks may wait for it for ever."""
    deadline = time.monotonic() + stop_seconds
    with suppress(ProcessLookupError):  # when none is left
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline and len(signals) < 2:
            time.sleep(PAUSE)
            process.poll()  # a process that ended, and whose exit code nobody asked for, counts as one
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def show(rows: list[Row]) -> None:
    """Print a table of the rows."""
    from rich.console import Console  # here, since this module is imported at every start of Hydra
    from rich.table import Table

    table = Table(title="Sweep")
    table.add_column("row", overflow="fold")
    table.add_column("state")
    table.add_column("seconds", justify="right")
    table.add_column("dev BLEU", justify="right")
    for row in rows:
        figures = (("%.1f", row.seconds), ("%.2f", row.dev_bleu()))
        table.add_row(row.job.row, row.state, *("" if figure is None else form % figure for form, figure in figures))
    Console().print(table)
