"""What others wrote is shown on the terminal, and never obeyed.

Names of runs, texts of a result.json and sentences may hold control characters: an escape sequence could recolour,
overwrite or retitle the terminal. They are spelled out, also in the log.
"""

import logging
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# C0 but for tab and line feed, DEL, C1, what turns the direction of writing, and what is no character at all.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: object) -> str:
    r"""Text with its control characters spelled out, an escape as `\x1b`."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


class Terminal(Console):
    """Rich's console without control characters from what is printed, and with room where it is no terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False)  # a path may hold [/b]
        if not self.is_terminal:
            self.width = 250

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What Rich prints, piece by piece."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


class LogFormatter(logging.Formatter):
    """The lines of the log, which have names in them."""

    def format(self, record: logging.LogRecord) -> str:
        """A record's line, and its traceback."""
        return visible(super().format(record))
