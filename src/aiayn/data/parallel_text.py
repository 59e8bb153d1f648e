"""Parallel text: pairs of one source and one target sentence.

The first station of a sentence's way. A corpus is any object that has the three methods of `ParallelText`; to add one,
write a class like those of `corpora/` and name it in a YAML file under conf/data. Sentences are plain strings that hold
no line feed, so that a pair can be stored as one line of each of two files.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from hydra.utils import instantiate

Pairs = Iterator[tuple[str, str]]


class ParallelText(Protocol):
    """What a corpus has to offer."""

    def splits(self) -> list[str]:
        """Names of the splits there are: "train" and "dev", and "test" where the corpus has one."""

    def pairs(self, split: str) -> Pairs:
        """Pairs of (source, target) in a fixed order, streamed, so that memory does not grow with the corpus."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able description that changes when the text would: a prepared corpus is found again by it."""


@runtime_checkable
class WithSymbols(Protocol):
    """What a corpus offers besides whose target side is symbols, and no text in which subwords are to be found."""

    def symbols(self) -> list[str]:
        """Words of the target side that each become one piece of the vocabulary, in a fixed order."""


def check_split(split: str, splits: list[str]) -> None:
    """Refuse with a ValueError a split that a corpus does not have."""
    if split not in splits:
        raise ValueError(f"data.split={split} does not exist: this corpus has {', '.join(splits)}.")


def split_text(data: Any, split: str) -> tuple[list[str], list[str]]:
    """Sources and references of a split, from the text that a config of data names.

    Raises:
        ValueError: if the data have no such split.
    """
    text = instantiate(data.corpus, _convert_="all")
    if split not in text.splits():
        raise ValueError(f"data.split={split} is not in {data.name}; it has {', '.join(text.splits())}.")
    pairs = list(text.pairs(split))
    return [source for source, _ in pairs], [reference for _, reference in pairs]


def aligned_lines(source: Path, target: Path) -> Pairs:
    """Pairs of lines of two files.

    Raises:
        ValueError: if they differ in length, or one cannot be read; see `read_lines`.
    """
    sources, targets = read_lines(source), read_lines(target)
    count = 0
    for sentence in sources:
        translation = next(targets, None)
        if translation is None:
            longer = count + 1 + sum(1 for _ in sources)
            raise _unequal(source, longer, target, count)
        count += 1
        yield sentence, translation
    if rest := sum(1 for _ in targets):
        raise _unequal(source, count, target, count + rest)


def _unequal(source: Path, source_lines: int, target: Path, target_lines: int) -> ValueError:
    return ValueError(
        f"Source and target must have the same number of lines, got {source_lines} in {source} and {target_lines} in "
        f"{target}. Line n of the one must be the translation of line n of the other."
    )


def read_lines(path: Path | BinaryIO) -> Iterator[str]:
    """Lines of a file, gzipped if its name ends in ".gz", or of an open one.

    Split at line feeds only: real corpora hold U+0085 and U+2028 inside sentences. A byte order mark at the beginning
    is no text.
    """
    name = path if isinstance(path, Path) else path.name
    number = 0
    try:
        with _opened(path) as file:
            for line in file:
                number += 1
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
                yield text if number > 1 else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}, is not UTF-8 ({error}). Convert the file to UTF-8.") from error
    except FileNotFoundError as error:
        raise ValueError(f"the file {path} does not exist.") from error
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{name} cannot be read after line {number}: {error}. Is the file complete?") from error


def _opened(path: Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """A file to read; one that is open already stays so."""
    if not isinstance(path, Path):
        return nullcontext(path)
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
