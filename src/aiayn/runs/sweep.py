"""A sweep as it stands: its rows in a table, and the process that runs it."""

import fcntl
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from aiayn.evaluation.metric import digits
from aiayn.runs.run import CONSOLE, Run
from aiayn.terminal import Terminal

LOCK = ".sweep.lock"  # names the process that sweeps in this folder, and is locked as long as it does
STYLES = {"done": "green", "running": "cyan", "failed": "red", "stale": "yellow"}


@dataclass
class Progress:
    """How far a row of a sweep is.

    Attributes:
        run: Its folder.
        state: In words; those for one that went wrong begin with "failed".
        name: What tables call it; the name of its folder, where it is given none.
        seconds: That it took so far; None where that is not known.
        started: When it was started, on the monotonic clock.
    """

    run: Run
    state: str
    name: str = ""
    seconds: float | None = None
    started: float = 0.0

    def __post_init__(self) -> None:
        self.name = self.name or self.run.row

    @classmethod
    def of(cls, run: Run, name: str = "") -> "Progress":
        """What the folder alone tells."""
        row = cls(run, run.stale or run.state, name)
        if row.state == "running":
            with suppress(OSError):
                row.seconds = time.time() - began(run)
        return row

    def refresh(self) -> None:
        """Read the folder again."""
        self.run = Run.read(self.run.folder, row=self.run.row, config=self.run.config)

    def begin(self) -> None:
        """Say that it runs from now on."""
        self.started = time.monotonic()
        self.state = "running"

    def end(self, state: str) -> None:
        """Say how it ended."""
        self.seconds = time.monotonic() - self.started
        self.refresh()
        self.state = state

    def look(self) -> None:
        """Bring a row that runs up to date; the others do not change."""
        if self.state == "running":
            self.seconds = time.monotonic() - self.started
            self.refresh()

    def cells(self) -> tuple[str, ...]:
        """Its line of the table: state, steps, the objective on dev, time left, time taken."""
        run, done = self.run, self.run.result.get("status") == "done"
        step = run.result.get("steps") if done else last_step(run)
        of = run.config.get("training", {}).get("max_steps")
        score = run.score("averaged", "dev", run.objective)
        if not done and f"dev/{run.objective}" in run.metrics:
            score = run.metrics[f"dev/{run.objective}"][1][-1]
        left = seconds_left(run) if self.state == "running" else None
        return (
            self.state,
            "" if step is None else f"{step:,}" if of is None else f"{step:,} / {of:,}",
            "" if score is None else f"{score:.{digits([score])}f}",
            duration(left),
            duration(self.seconds),
        )

    def when(self) -> str:
        """When its files changed last, or how long it will go on."""
        if self.state == "running" and (left := seconds_left(self.run)) is not None:
            return f"{duration(left)} left"
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(changed(self.run)))


def duration(seconds: float | None) -> str:
    """`1:02:03`, and `100:02:03`: no days."""
    if seconds is None:
        return ""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def changed(run: Run) -> float:
    """When a run's results or metrics were written last, in seconds of the system's clock."""
    names = ("result.json", "evaluation.json", "metrics/version_*/metrics.csv")
    return max((file.stat().st_mtime for name in names for file in run.folder.glob(name)), default=0.0)


def last_step(run: Run) -> int | None:
    """The optimizer step that was logged last."""
    return max((int(steps[-1]) for steps, _ in run.metrics.values()), default=None)


def began(run: Run) -> float:
    """When the process that runs it locked the folder, in seconds of the system's clock."""
    return (run.folder / ".lock").stat().st_mtime


def seconds_left(run: Run) -> float | None:
    """Of a run's training at the pace of the process that runs it, which may have resumed it."""
    with suppress(OSError, KeyError, IndexError, ValueError):
        newest = run.metric_files[-1]
        seconds = newest.stat().st_mtime - began(run)
        steps, _ = run.metrics["train/loss"]
        before = steps[steps < first_step(newest)]
        behind = steps[-1] - (before[-1] if len(before) else 0)
        if seconds > 0 and behind > 0:
            return float((run.config["training"]["max_steps"] - steps[-1]) * seconds / behind)
    return None


def first_step(file: Path) -> int:
    """The first step of a file of metrics."""
    with file.open(encoding="utf-8") as lines:
        column = next(lines).strip().split(",").index("step")
        return int(next(lines).split(",")[column])


def table(rows: Sequence[Progress], *, most: int | None = None) -> Table:
    """The rows, or the `most` of them around the first that runs where there are more."""
    shown = grid(rows, "row", "left", "time")
    first = next((number for number, row in enumerate(rows) if row.state == "running"), 0)
    first = max(0, min(first - 1, len(rows) - most)) if most else 0
    for row in rows[first:][:most]:
        state, *cells = row.cells()
        shown.add_row(Text(row.name), Text(state, style=STYLES.get(state.split()[0], "")), *cells)
    return shown


def grid(rows: Sequence[Progress], first: str, *last: str) -> Table:
    """A table without its lines yet, which fits 80 columns: a name, how it stands, and columns of figures."""
    shown = Table(show_edge=False, pad_edge=False, caption=counts(rows))
    shown.add_column(first, overflow="fold")
    shown.add_column("state")
    objectives = {row.run.objective for row in rows}
    said = (row.run.said("averaged", "dev", row.run.objective, "name") for row in rows)
    score = next(filter(None, said), *objectives) if len(objectives) == 1 else "score"
    for name in ("step", f"dev {score}".replace(" ", "\n"), *last):
        shown.add_column(name, justify="right", no_wrap=True)
    return shown


def listing(rows: Sequence[Progress], *, most: int | None = None) -> Table:
    """Runs of any kind, a line each, or the `most` that changed last; the newest at the end, above the prompt."""
    shown = grid(rows, "run", "when")
    for row in sorted(rows, key=lambda row: changed(row.run))[-(most or len(rows)) :]:
        state, step, score, *_ = row.cells()
        shown.add_row(Text(row.name), Text(state, style=STYLES.get(state.split()[0], "")), step, score, row.when())
    return shown


def counts(rows: Sequence[Progress]) -> str:
    """How many are in each state."""
    found = Counter(row.state.split(" (")[0] for row in rows)
    return ", ".join(f"{count} {state}" for state, count in found.items())


def show(rows: Sequence[Progress], *, shown_as: Callable[[Sequence[Progress]], Table] = table) -> None:
    """Print the table, or the listing; below it why rows failed, and what to do about those that are stale."""
    console = Terminal()
    console.print(shown_as(rows))
    reasons: dict[tuple[str, str], list[Progress]] = {}
    for row in rows:
        if row.state.startswith("failed"):
            reasons.setdefault((row.state, row.run.error), []).append(row)
    for (state, error), failed in reasons.items():
        file = failed[0].run.folder / CONSOLE
        said = f"{', '.join(row.name for row in failed)} {state}: {error}{f'; see {file}' if file.exists() else ''}"
        console.print(Text(said), soft_wrap=True)
    if any(row.state.startswith("stale") for row in rows):
        console.print("stale: done, but made of what has changed since; force=true runs such rows anew", soft_wrap=True)


@contextmanager
def live(rows: Sequence[Progress]) -> Iterator[Callable[[], None]]:
    """Keep the table on the terminal, as many rows as there is room for; what is given brings it up to date."""
    with Live(console=Terminal(), auto_refresh=False, transient=True) as screen:

        def update() -> None:
            for row in rows:
                row.look()
            screen.update(table(rows, most=max(3, screen.console.height - 7)), refresh=True)

        yield update


def lock_sweep(folder: Path) -> TextIO:
    """Keep other processes from sweeping in this folder as long as the file is open.

    Raises:
        ValueError: if another process does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        raise ValueError(
            f"hydra.sweep.dir={folder} is in use by process {lock.read().strip()}, which sweeps there; "
            f"wait for it, or stop it: the same command with task=status stop=true."
        ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()} on {socket.gethostname()}")
    lock.flush()
    return lock


def sweeper(folder: Path) -> str | None:
    """The process that sweeps in a folder, `pid on host`; None if there is none, also when it was killed."""
    with suppress(FileNotFoundError), (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read()
    return None


def stop_sweep(folder: Path) -> str | None:
    """Ask the process that sweeps in a folder to end, and wait until it has.

    Returns:
        The process, or None if there was none.

    Raises:
        ValueError: if it runs on another machine.
    """
    process = sweeper(folder)
    if process:
        pid, _, host = process.partition(" on ")
        if host != socket.gethostname():
            raise ValueError(f"{folder} is swept by process {process}, which cannot be stopped from here.")
        os.kill(int(pid), signal.SIGTERM)
        while sweeper(folder) == process:
            time.sleep(0.1)
    return process
