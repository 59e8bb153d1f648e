"""Encoded sentences: sequences of different lengths end to end in one array, in memory or mapped from disk.

A mapped array is shared by all processes that open it, so ranks and loader workers hold one copy between them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from aiayn.data.tokenizer import BOS, EOS, PAD, Vocabularies


class Ragged:
    """Sequences of different lengths, end to end in one array.

    Args:
        tokens: All tokens, `(tokens,)`.
        offsets: Where each sequence begins, and the end of the last, int64, `(sequences + 1,)`.
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray) -> None:
        self.tokens, self.offsets = tokens, offsets
        self._stem: Path | None = None

    @classmethod
    def open(cls, stem: Path) -> Self:
        """Map `<stem>.tokens.npy` and `<stem>.offsets.npy` into memory; pickling such an object sends only the path."""
        ragged = cls(*(np.load(f"{stem}.{part}.npy", mmap_mode="r").view(np.ndarray) for part in ("tokens", "offsets")))
        ragged._stem = stem.absolute()
        return ragged

    @classmethod
    def join(cls, sequences: Sequence[np.ndarray]) -> Self:
        """Hold in-memory sequences."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        return cls(np.concatenate([np.empty(0, np.int32), *sequences]), _offsets(lengths))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, special symbols left out, int64, `(sequences,)`."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def select(self, keep: np.ndarray) -> "Ragged":
        """Copy the sequences that `keep`, boolean, `(sequences,)`, marks."""
        lengths = self.lengths
        return Ragged(self.tokens[np.repeat(keep, lengths)], _offsets(lengths[keep]))

    def padded(self, rows: np.ndarray, *, prefix: bool) -> np.ndarray:
        """Gather sequences as a rectangle: EOS behind each, then PAD, and BOS in front where `prefix` says so.

        Args:
            rows: Which sequences, `(rows,)`.
            prefix: Whether sequences begin with BOS, as the decoder's input does.

        Returns:
            Ids, int64, `(rows, longest + 1 + prefix)`.
        """
        rows = np.asarray(rows, dtype=np.int64)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]  # (rows, longest)
        padded = np.full((len(rows), len(columns) + 1 + prefix), PAD, dtype=np.int64)
        padded[:, prefix : prefix + len(columns)][inside] = self.tokens[(starts[:, None] + columns)[inside]]
        padded[np.arange(len(rows)), lengths + prefix] = EOS
        if prefix:
            padded[:, 0] = BOS
        return padded

    def __reduce__(self) -> tuple[Callable[..., "Ragged"], tuple[Any, ...]]:
        return (type(self), (self.tokens, self.offsets)) if self._stem is None else (type(self).open, (self._stem,))


class RaggedWriter:
    """Writes what `Ragged.open` maps, piece by piece; a context manager, complete once it was left without an error.

    Args:
        stem: Path without the ends `.tokens.npy` and `.offsets.npy`.
        vocab_size: Decides the bytes for a token: 2 where they suffice, else 4.
    """

    def __init__(self, stem: Path, *, vocab_size: int) -> None:
        self._stem = stem
        self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        self._lengths: list[np.ndarray] = []

    def __enter__(self) -> Self:
        self._file = open(f"{self._stem}.tokens.npy", "wb")
        self._write_header(tokens=0)
        return self

    def append(self, sequences: Ragged) -> None:
        """Add sequences behind those that are there."""
        self._file.write(sequences.tokens.astype(self._dtype).data)
        self._lengths.append(sequences.lengths.astype(np.int32))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is not None:
                return
            offsets = _offsets(np.concatenate([np.empty(0, np.int32), *self._lengths]))
            self._file.seek(0)
            self._write_header(tokens=int(offsets[-1]))
            to_disk(self._file)
        with open(f"{self._stem}.offsets.npy", "wb") as file:
            np.save(file, offsets)
            to_disk(file)

    def _write_header(self, *, tokens: int) -> None:
        # numpy pads the header for a first axis of up to 21 digits, so the last one fits where the first one was.
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(self._file, header)


@dataclass(frozen=True)
class EncodedPairs:
    """Both sides of a split, row for row."""

    source: Ragged
    target: Ragged

    def __len__(self) -> int:
        return len(self.source)

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence on either side, with EOS."""
        return 1 + int(max(self.source.lengths.max(initial=0), self.target.lengths.max(initial=0)))


def encode_pairs(vocabularies: Vocabularies, sources: Sequence[str], targets: Sequence[str]) -> EncodedPairs:
    """Encode sentences in memory; for text of evaluation size."""
    if len(sources) != len(targets):
        raise ValueError(f"Sources and targets must be as many, got {len(sources)} and {len(targets)}.")
    encoded = vocabularies.source.encode(sources), vocabularies.target.encode(targets)
    return EncodedPairs(*map(Ragged.join, encoded))


def to_disk(file: IO[bytes] | IO[str]) -> None:
    """Wait until the data are on the disk: a folder renamed before that could be hollow after a power failure."""
    file.flush()
    os.fsync(file.fileno())


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
