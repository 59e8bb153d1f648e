"""Several corpora in one training (`data.mixture`): how often an epoch has the pairs of each.

The pairs of all lie end to end, the main corpus's first. Of a corpus whose weight is a fraction every epoch takes
another part, in rotation, so that no pair waits longer than another. The parts are spread over the lengths: each has
one of every few pairs that are neighbours in length. So all epochs cost nearly the same, and have the same number of
steps.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from hydra.utils import instantiate

from aiayn.data.parallel_text import ParallelText

MAIN = "data.corpus"  # the key of the corpus whose dev and test are held out


def texts_of(data: Any) -> dict[str, ParallelText]:
    """The corpora that a config of data names, by their keys: the main one, and those of the mixture by their names.

    Raises:
        ValueError: if one of the mixture has no train.
    """
    texts = {MAIN: instantiate(data.corpus, _convert_="all")}
    for name, part in sorted(data.mixture.items()):
        texts[f"data.mixture.{name}"] = text = instantiate(part.corpus, _convert_="all")
        if "train" not in text.splits():
            raise ValueError(
                f"data.mixture.{name}.corpus has no train, of which alone a mixture is made; it has "
                f"{', '.join(text.splits()) or 'no split'}. Give its training text."
            )
    return texts


def weights_of(data: Any) -> dict[str, float]:
    """How often an epoch has a pair of each corpus that a config of data names, by its key."""
    return {MAIN: 1, **{f"data.mixture.{name}": part.weight for name, part in data.mixture.items()}}


class Mixture:
    """How often an epoch has the pairs of corpora that lie end to end.

    Args:
        sizes: Pairs of each corpus.
        weights: How often each of them is seen in an epoch, on average.

    Attributes:
        counts: Pairs of each corpus in an epoch, the same in every one: its size times its weight, rounded, but 1 at
            least.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float]) -> None:
        self.sizes = list(sizes)
        self.counts = [max(1, round(size * weight)) for size, weight in zip(sizes, weights, strict=True)]
        self._starts = np.cumsum([0, *self.sizes]).tolist()

    @classmethod
    def once(cls, size: int) -> Self:
        """Of one corpus alone."""
        return cls([size], [1])

    @property
    def pairs(self) -> int:
        """In an epoch."""
        return sum(self.counts)

    def total(self, values: np.ndarray) -> float:
        """What values of the pairs, `(pairs,)`, come to in an epoch, on average over the epochs."""
        sums = (values[start : start + size].sum().item() for start, size in self._parts())
        return sum(one * count / size for one, count, size in zip(sums, self.counts, self.sizes, strict=True))

    def mean(self, values: np.ndarray) -> float:
        """Of the values of the pairs that epochs have."""
        return self.total(values) / self.pairs

    def most(self, cost: np.ndarray) -> int:
        """What no epoch costs more than, `cost` being that of the pairs, `(pairs,)`.

        Parts that are spread evenly over the sorted costs differ from their average by less than the largest of them.
        """
        most = 0
        for (start, size), count in zip(self._parts(), self.counts, strict=True):
            part = cost[start : start + size]
            most += int(part.sum(dtype=np.int64)) * count // size + (int(part.max()) if count % size else 0)
        return most

    def rows(self, cost: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """Which pairs an epoch has, `(pairs in the epoch,)`, those of a corpus together; int32 where that suffices."""
        kind = np.int64 if len(cost) >> 31 else np.int32
        found = []
        for number, ((start, size), count) in enumerate(zip(self._parts(), self.counts, strict=True)):
            rows = np.arange(start, start + size, dtype=kind)
            if count % size == 0:
                found.append(np.repeat(rows, count // size))
                continue
            np.random.default_rng((seed, number)).shuffle(rows)
            rows = rows[np.argsort(cost[rows], kind="stable")]
            # The pair at place p has its turn where (p + epoch) * weight passes a whole number: evenly often among the
            # neighbours of p in one epoch, and over the epochs.
            turns = np.diff((np.arange(size + 1) + epoch) * count // size)
            found.append(np.repeat(rows, turns))
        return np.concatenate(found)

    def _parts(self) -> list[tuple[int, int]]:
        """Where each corpus begins, and how many pairs it has."""
        return list(zip(self._starts, self.sizes, strict=False))
