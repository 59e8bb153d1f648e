"""Progress of a long step: a Rich bar on a terminal, a plain line every few seconds elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aiayn.terminal import Terminal

log = logging.getLogger(__name__)
SECONDS = 10.0  # between two plain lines


class Advance(Protocol):
    """Report how many units are done since the last call, and what there is to say about them."""

    def __call__(self, units: int = 1, text: str = "") -> None: ...


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
        yield lambda units=1, text="": None
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

            def advance_bar(units: int = 1, text: str = "") -> None:
                bar.advance(task, units)
                if text:
                    bar.update(task, text=text)

            yield advance_bar
    else:
        yield _lines(description, total, done)


def _lines(description: str, total: int | None, done: int) -> Advance:
    """An `Advance` that logs a line at most every `SECONDS`, and at the end."""
    start = last = time.monotonic()
    first = done

    def advance(units: int = 1, text: str = "") -> None:
        nonlocal done, last
        done += units
        now = time.monotonic()
        if now - last < SECONDS and done != total:
            return
        last = now
        rate = (done - first) / max(now - start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
        of = f" of {total:,}" if total else ""
        log.info("%s: %s%s%s%s", description, f"{done:,}", of, left, text and f", {text}")

    return advance
