"""Progress of a long step: a Rich bar on a terminal, a plain line every few seconds elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aiayn.terminal import Terminal

log = logging.getLogger(__name__)
SECONDS = 10.0  # between two plain lines
BAR_SECONDS = 1.0  # between two texts behind a bar


class Advance(Protocol):
    """Report how many units are done since the last call, and what there is to say about them.

    `text` is called when it is shown only: what it says may cost time, as a number on a GPU does.
    """

    def __call__(self, units: int = 1, text: Callable[[], str] = str) -> None: ...


@contextmanager
def progress(description: str, *, total: int | None, done: int = 0, silent: bool = False) -> Iterator[Advance]:
    """Show how far a step of `total` units is, on standard error.

    Args:
        description: What is done, a few words.
        total: Units in all; None if unknown.
        done: Units that were done before, in a resumed run.
        silent: Show nothing, for ranks other than the first.
    """
    console = Terminal(stderr=True)
    if silent:
        yield lambda units=1, text=str: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(description, total=total, completed=done, text="")
            last = 0.0

            def advance_bar(units: int = 1, text: Callable[[], str] = str) -> None:
                nonlocal last
                bar.advance(task, units)
                if time.monotonic() - last >= BAR_SECONDS:
                    bar.update(task, text=text())
                    last = time.monotonic()

            yield advance_bar
    else:
        yield _lines(description, total, done)


def _lines(description: str, total: int | None, done: int) -> Advance:
    """An `Advance` that logs a line at most every `SECONDS`, and at the end."""
    start = last = time.monotonic()
    first = done

    def advance(units: int = 1, text: Callable[[], str] = str) -> None:
        nonlocal done, last
        done += units
        now = time.monotonic()
        if now - last < SECONDS and done != total:
            return
        last = now
        rate = (done - first) / max(now - start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
        of = f" of {total:,}" if total else ""
        said = text()
        log.info("%s: %s%s%s%s", description, f"{done:,}", of, left, said and f", {said}")

    return advance
