"""Batches by number of tokens (section 5.1): whole optimizer steps, split over devices and micro-batches.

The paper's batch is "approximately 25000 source tokens and 25000 target tokens". Here that is one optimizer step over
all devices, so that neither the number of devices nor gradient accumulation changes what a step sees: every replica
plans the same steps, splits each into `replicas * accumulation` micro-batches of equal size, and takes its own. A
loader yields whole steps, so that all that counts counts steps. A step knows the number of its target tokens, by which
the loss is divided; no communication is needed.

The cost of a pair is the length of its longer side, with EOS. A step whose pairs cost at most `tokens_per_batch`
together holds at most that many source and that many target tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from aiayn.data.mixture import Mixture
from aiayn.data.ragged import EncodedPairs
from aiayn.data.replica import ALONE, Replica
from aiayn.data.step_size import steps_in_epoch
from aiayn.data.tokenizer import BOS, EOS, PAD

# Rows of the split, (pairs,) for each micro-batch of this replica, and the target tokens of the whole optimizer step.
StepRows = tuple[list[np.ndarray], int]


@dataclass(frozen=True)
class Batch:
    """Pairs that one device computes at once, padded with PAD on the right.

    Attributes:
        source: Tokens and EOS, int64, `(pairs, source)`.
        target: BOS, tokens, EOS, int64, `(pairs, target)`: the model reads `target[:, :-1]`, predicts `target[:, 1:]`.
        indices: Rows in the split, int64, `(pairs,)`; -1 is the filler, an empty sentence with nothing to predict.
        positions: Where what is predicted is real and no padding, in `target[:, 1:]` flattened, int64, `(tokens,)`.
        padded: Whether `source` holds padding. Known before, as `positions` are: to look would make a GPU wait.
    """

    source: Tensor
    target: Tensor
    indices: Tensor
    positions: Tensor
    padded: bool

    @classmethod
    def of(cls, source: np.ndarray, target: np.ndarray, indices: np.ndarray) -> "Batch":
        """The batch of padded sources and targets; the arguments are its attributes."""
        positions = np.flatnonzero(target[:, 1:] != PAD)
        arrays = dict(zip(TENSORS, map(torch.from_numpy, (source, target, indices, positions)), strict=True))
        return cls(**arrays, padded=bool((source == PAD).any()))

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Batch":
        moved = {name: getattr(self, name).to(device, non_blocking=non_blocking) for name in TENSORS}
        return replace(self, **moved)

    def pin_memory(self) -> "Batch":
        return replace(self, **{name: getattr(self, name).pin_memory() for name in TENSORS})

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays go through a pipe. Tensors would go through shared memory; where that is full, torch's worker drops
        # them with a traceback, and who asked for the batch waits for ever.
        return Batch.of, tuple(getattr(self, name).numpy() for name in TENSORS[:3])


TENSORS = ("source", "target", "indices", "positions")


@dataclass(frozen=True)
class Step:
    """What a replica computes of an optimizer step.

    Attributes:
        batches: Its micro-batches, one after the other.
        tokens: Target tokens, with EOS, of the whole step over all replicas and micro-batches.
    """

    batches: tuple[Batch, ...]
    tokens: int

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Step":
        return replace(self, batches=tuple(batch.to(device, non_blocking=non_blocking) for batch in self.batches))

    def pin_memory(self) -> "Step":
        return replace(self, batches=tuple(batch.pin_memory() for batch in self.batches))


class TokenBatchSampler(Sampler[StepRows]):
    """Yields a replica's micro-batches of every optimizer step of an epoch; deterministic in (seed, epoch).

    Every epoch has the same number of steps, each step about as many tokens, and every replica the same number of
    micro-batches. The pairs of a step have nearly equal lengths on both sides. Plans in whole-array operations.

    Args:
        source_lengths: Tokens with EOS, `(pairs,)`.
        target_lengths: The same of the target side.
        tokens_per_batch: What a step may cost, over all replicas and micro-batches.
        mixture: How often an epoch has each pair; None: once.
        replica: Whose share is wanted.
        accumulation: Micro-batches of a replica in a step.
        seed: Of the order.
        shuffle: Whether pairs of equal lengths and the steps come in random order, anew in every epoch.

    Attributes:
        steps: Optimizer steps in an epoch.
        skip: Steps that the next iteration passes over; the one after it begins at the beginning.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        mixture: Mixture | None = None,
        replica: Replica = ALONE,
        accumulation: int = 1,
        seed: int = 1,
        shuffle: bool = True,
    ) -> None:
        self.source_lengths = np.asarray(source_lengths, dtype=np.int32)
        self.target_lengths = np.asarray(target_lengths, dtype=np.int32)
        self.cost = np.maximum(self.source_lengths, self.target_lengths)
        if not len(self.cost):
            raise ValueError("A split without pairs has no batches. Give one with at least one pair.")
        self.mixture = mixture or Mixture.once(len(self.cost))
        self.steps = steps_in_epoch(self.cost, tokens_per_batch, self.mixture)
        self.replica, self.accumulation = replica, accumulation
        self.seed, self.shuffle = seed, shuffle
        self.epoch = self.skip = 0
        self.sampler = self  # Lightning looks for set_epoch on the batch sampler's sampler

    def __len__(self) -> int:
        return self.steps

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0

    def __iter__(self) -> Iterator[StepRows]:
        first_step, self.skip = self.skip, 0
        for rows in self._plan(first_step):
            own = self._split(rows)[self.replica.index * self.accumulation :][: self.accumulation]
            yield [part if len(part) else np.array([-1]) for part in own], int(self.target_lengths[rows].sum())

    def padding_efficiency(self) -> float:
        """Share of real tokens in this epoch's micro-batches of all replicas, source and target together."""
        real = area = 0
        for rows in self._plan():
            real += int(self.source_lengths[rows].sum() + self.target_lengths[rows].sum())
            area += self._area(self._split(rows))
        return real / area

    def _plan(self, first_step: int = 0) -> Iterator[np.ndarray]:
        """Rows of each step, from `first_step` on."""
        random = np.random.default_rng((self.seed, self.epoch))
        rows = self.mixture.rows(self.cost, seed=self.seed, epoch=self.epoch)
        if self.shuffle:
            random.shuffle(rows)  # the sorts below are stable: pairs of equal lengths stay in random order
        source, target = self.source_lengths[rows], self.target_lengths[rows]
        rows = rows[np.lexsort((source - target, np.maximum(source, target)))]
        bounds = _equal_shares(self.cost[rows], self.steps)
        # By the longer side alone the shorter one would vary much within a step: bands of several steps are sorted anew
        # by the source. A quarter of sqrt(steps) was best or near it on real text, for 20 steps as for thousands. Every
        # second band goes downwards, so that source lengths do not jump where a step crosses from band to band.
        width = max(1, round(math.sqrt(self.steps) / 4))
        if width > 1:
            band = np.repeat(np.arange(self.steps) // width, np.diff(bounds))
            rows = rows[np.lexsort((self.source_lengths[rows] * np.where(band % 2, -1, 1), band))]
            bounds = _equal_shares(self.cost[rows], self.steps)
        order = random.permutation(self.steps) if self.shuffle else np.arange(self.steps)
        for step in order[first_step:]:
            yield rows[bounds[step] : bounds[step + 1]]

    def _split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Split a step into micro-batches of equal cost, by whichever side leaves the least padding."""
        parts = self.replica.count * self.accumulation
        if parts == 1:
            return [rows]
        candidates = []
        for lengths in (self.cost, self.source_lengths, self.target_lengths):
            ordered = rows[np.argsort(lengths[rows], kind="stable")]
            candidates.append(np.split(ordered, _equal_shares(self.cost[ordered], parts)[1:-1]))
        return min(candidates, key=self._area)

    def _area(self, micro_batches: list[np.ndarray]) -> int:
        """Tokens with padding, both sides together."""
        return sum(
            len(rows) * int(self.source_lengths[rows].max() + self.target_lengths[rows].max())
            for rows in micro_batches
            if len(rows)
        )


def _equal_shares(cost: np.ndarray, shares: int) -> np.ndarray:
    """Cut a sequence into shares of equal cost, none of them empty while there are enough elements.

    Returns:
        Where each share begins, and the end of the last, `(shares + 1,)`.
    """
    if len(cost) <= shares:
        return np.minimum(np.arange(shares + 1), len(cost))
    starts = np.cumsum(cost, dtype=np.int64)
    total = starts[-1]
    starts -= cost
    number = np.arange(shares + 1)
    bounds = np.searchsorted(starts, -(-number * total // shares))  # an element is in the share where it begins
    # An empty share takes the element that follows it; at the end of the sequence, one that precedes it.
    bounds = np.maximum.accumulate(bounds - number) + number
    return np.minimum(bounds, len(cost) - shares + number)


class PairDataset(Dataset[Step]):
    """Makes a Step of the rows that the sampler names; the corpus stays mapped, not copied, in loader workers."""

    def __init__(self, pairs: EncodedPairs) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, planned: StepRows) -> Step:
        micro_batches, tokens = planned
        return Step(tuple(self.batch(rows) for rows in micro_batches), tokens)

    def batch(self, rows: np.ndarray) -> Batch:
        """The pairs `rows` `(pairs,)`; -1 is the filler."""
        if rows[0] < 0:  # reads BOS, so that attention has a position to attend to, and predicts nothing
            source, target = np.array([[EOS]]), np.array([[BOS, PAD]])
        else:
            source = self.pairs.source.padded(rows, prefix=False)
            target = self.pairs.target.padded(rows, prefix=True)
        return Batch.of(source, target, rows.astype(np.int64))


class StepLoader(DataLoader[Step]):
    """A loader whose position is part of a checkpoint, so that a resumed run sees the rest of the epoch, exactly.

    Args:
        dataset: Makes the steps.
        sampler: Says which; its epoch and its `skip` are set when a state is loaded.
        workers: Processes that make steps ahead of time; 0 makes them when they are asked for.
        pin_memory: Whether steps are put where a GPU can fetch them by itself.
    """

    def __init__(
        self, dataset: PairDataset, sampler: TokenBatchSampler, *, workers: int = 0, pin_memory: bool = False
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=sampler,  # type: ignore[arg-type]  # torch expects lists of rows
            collate_fn=_as_it_is,
            num_workers=workers,
            pin_memory=pin_memory,
            # The loader draws a seed for its workers; from a generator of its own, so that beginning anew in the middle
            # of an epoch leaves the random state of the run as it was.
            generator=torch.Generator(),
        )
        self.token_sampler = sampler
        self.steps = 0

    def __iter__(self) -> Iterator[Step]:  # type: ignore[override]
        # A generator begins at the first `next`, thus after Lightning has set the epoch. Counting what was handed out,
        # not what workers fetched ahead, makes the state that of the training.
        self.steps = self.token_sampler.skip
        try:
            for step in super().__iter__():
                self.steps += 1
                yield step
        except (OSError, RuntimeError) as error:  # of the loader: whoever takes the steps raises elsewhere
            if not self.num_workers:
                raise
            reason = " ".join(str(error).split())
            raise ValueError(
                f"data.loader_workers={self.num_workers}: {reason}; make room in memory and in /dev/shm, or give 0, "
                f"which makes the same batches in the training process."
            ) from error

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the steps of it that were handed out: the same on every replica."""
        return {"epoch": self.token_sampler.epoch, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.token_sampler.set_epoch(state_dict["epoch"])
        self.steps = self.token_sampler.skip = state_dict["steps"]


# Of an iterator that could not start its workers, whose deletion else prints a traceback beside the reason.
_MultiProcessingDataLoaderIter._shutdown = True


def _as_it_is(step: Any) -> Any:
    return step
