"""How large an optimizer step of a corpus is: steps in an epoch, micro-batches of a step, tokens of both sides."""

import math
from dataclasses import dataclass

import numpy as np

from aiayn.data.mixture import Mixture
from aiayn.data.ragged import EncodedPairs

FEWEST_STEPS = 20  # in an epoch of a corpus that takes its budget from the recipe


def steps_in_epoch(cost: np.ndarray, tokens_per_batch: int, mixture: Mixture) -> int:
    """Optimizer steps in an epoch of pairs that cost so much, `(pairs,)`, each as often as a mixture has it.

    Raises:
        ValueError: if a pair costs more than a step may.
    """
    longest, total = int(cost.max()), mixture.most(cost)
    if tokens_per_batch < longest:
        raise ValueError(
            f"data.tokens_per_batch={tokens_per_batch} is smaller than the longest pair ({longest} tokens). "
            "Raise it, or lower data.cleaning.max_length."
        )
    if total <= tokens_per_batch:
        return 1
    room = tokens_per_batch - longest  # an equal share of the total and the pair begun last fit the budget
    return min(math.ceil(total / room), mixture.pairs) if room else mixture.pairs  # no step without a pair


def accumulation_steps(
    tokens_per_batch: int, tokens_per_device: int | None, *, world_size: int = 1, longest: int
) -> int:
    """Smallest number of micro-batches that keeps each within what a device can hold.

    Args:
        tokens_per_batch: Of one optimizer step over all devices.
        tokens_per_device: Of one micro-batch, at most; None when a device's share of a step fits it.
        world_size: Number of devices.
        longest: Cost of the longest pair.
    """
    if tokens_per_device is None or (world_size == 1 and tokens_per_batch <= tokens_per_device):
        return 1
    if tokens_per_device <= longest:
        raise ValueError(
            f"data.tokens_per_device={tokens_per_device} is smaller than the longest pair ({longest} tokens) and one "
            "token more. Raise it, or lower data.cleaning.max_length."
        )
    # A share of a step overshoots its equal part by less than the pair that was begun last.
    return math.ceil(tokens_per_batch / (world_size * (tokens_per_device - longest)))


@dataclass(frozen=True)
class StepSize:
    """What an optimizer step of a corpus holds.

    Attributes:
        tokens_per_batch: What it may cost.
        steps: How many an epoch has.
        source_tokens: What it holds on average, EOS counted.
        target_tokens: The same of the target side.
        enough: The `tokens_per_batch` with which it would hold, on average over both sides, what it now may cost.
    """

    tokens_per_batch: int
    steps: int
    source_tokens: float
    target_tokens: float
    enough: int

    @classmethod
    def of(
        cls,
        pairs: EncodedPairs,
        tokens_per_batch: int,
        *,
        fits_corpus: bool = False,
        mixture: Mixture | None = None,
    ) -> "StepSize":
        """Plan the steps of a corpus.

        Args:
            pairs: Its training pairs.
            tokens_per_batch: What a step may cost.
            fits_corpus: Whether it costs less where an epoch would have fewer than `FEWEST_STEPS` steps.
            mixture: How often an epoch has each pair; None: once.
        """
        source, target = pairs.source.lengths + 1, pairs.target.lengths + 1  # with EOS
        cost = np.maximum(source, target)
        mixture = mixture or Mixture.once(len(cost))
        longest, total = int(cost.max()), mixture.most(cost)
        if fits_corpus and steps_in_epoch(cost, tokens_per_batch, mixture) < FEWEST_STEPS:
            tokens_per_batch = min(tokens_per_batch, longest + max(1, (total - 1) // (FEWEST_STEPS - 1)))
        steps = steps_in_epoch(cost, tokens_per_batch, mixture)
        sources, targets = mixture.total(source), mixture.total(target)
        full = max(1, round((sources + targets) / 2 / tokens_per_batch))  # steps that hold the budget
        return cls(
            tokens_per_batch,
            steps=steps,
            source_tokens=sources / steps,
            target_tokens=targets / steps,
            enough=longest + math.ceil(total / full),
        )

    @property
    def figures(self) -> dict[str, float]:
        """What a run's result says of a step."""
        return {"source_tokens_per_step": self.source_tokens, "target_tokens_per_step": self.target_tokens}

    @property
    def described(self) -> str:
        """What a step holds, in words."""
        return f"{self.source_tokens:,.0f} source and {self.target_tokens:,.0f} target tokens"

    @property
    def shortfall(self) -> float:
        """Share of the budget that a step leaves unused, on average over both sides."""
        return 1 - (self.source_tokens + self.target_tokens) / 2 / self.tokens_per_batch
