"""Which rows of a sweep cannot win any more: successive halving, without waiting (Li et al. 2020, "ASHA", section 3.2).

At each rung, a share of the training, a row goes on if it is among the best of the rows that have come so far. So rows
that run one after the other, or side by side, need not wait for each other; the first ones go on in any case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def rungs(max_steps: int, *, reduction: int, least: float) -> list[int]:
    """The steps at which rows are compared, the earliest first: `max_steps` over `reduction`, over its square, ...

    Args:
        max_steps: Of the training.
        reduction: One in so many goes on from each rung.
        least: Share of the training before which none is stopped.

    Raises:
        ValueError: if a setting makes no sense.
    """
    if reduction < 2:
        raise ValueError(f"callbacks.halving.reduction must be 2 or more, got {reduction}.")
    if not 0 < least < 1:
        raise ValueError(f"callbacks.halving.least must be above 0 and below 1, got {least}.")
    found, step = [], max_steps / reduction
    while step >= max(1, least * max_steps):
        found.append(round(step))
        step /= reduction
    return found[::-1]


def goes_on(value: float, others: Sequence[float], *, reduction: int) -> bool:
    """Whether a row with this value, the greater the better, is among the best of those that came before it."""
    known = [other for other in others if np.isfinite(other)]
    return not known or value >= float(np.quantile(known, 1 - 1 / reduction))


@dataclass(frozen=True)
class Replay:
    """What the rule would have done to trainings that were finished without it.

    Attributes:
        saved: Share of all their steps.
        stopped: Runs, by number, and the step at which each would have been stopped.
        wrongly: Those of them that ended among the best all the same.
        regret: By how much the best of all is better, at the end, than the best of those that went on.
    """

    saved: float
    stopped: Mapping[int, int]
    wrongly: Sequence[int]
    regret: float


def replay(curves: Sequence[Mapping[int, float]], *, reduction: int, least: float) -> Replay:
    """Put the rule to runs that came one after the other.

    Args:
        curves: Of each run the validations' values by step, the greater the better; it ends at its last one.
        reduction: As for `rungs`.
        least: As for `rungs`.
    """
    ends = [max(curve) for curve in curves]
    stopped: dict[int, int] = {}
    for number, curve in enumerate(curves):
        for rung in rungs(ends[number], reduction=reduction, least=least):
            step = min(step for step in curve if step >= rung)
            before = [other for other in range(number) if stopped.get(other, step) >= step]
            others = [curves[other][step] for other in before if step in curves[other]]
            if not goes_on(curve[step], others, reduction=reduction):
                stopped[number] = step
                break
    finals = np.array([curve[end] for curve, end in zip(curves, ends, strict=True)])
    good = float(np.quantile(finals, 1 - 1 / reduction))
    left = [final for number, final in enumerate(finals) if number not in stopped]
    saved = sum(ends[number] - step for number, step in stopped.items()) / sum(ends)
    wrongly = [number for number in stopped if finals[number] >= good]
    return Replay(saved, stopped, wrongly, float(finals.max() - max(left)))
