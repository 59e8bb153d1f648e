"""Rows beside base at equal cost: what base scores where it has cost as much, and what a row saves on the way there.

Both are read off the curves in training, of what `callbacks.likelihoods` keeps: ln P of a held-out sentence, on average
over all sets. So nothing is averaged, and base has been trained no less, but is on its way to its own end. A curve is
straight between two validations, over the logarithm of the cost. Nothing is said beyond the end of a curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiayn.evaluation.significance import SEED, resampled_counts
from aiayn.report.rows import Row, base_of
from aiayn.report.table import MINUS, Column, Section

COSTS = {"flops": "FLOPs", "training_seconds": "seconds"}
NOTE = (
    "Of held-out ln P, nats a sentence, from its curves in training. At the same cost: the row at its end minus base "
    "where that has cost as much; empty where the row costs more than base in all. Gain: how many times less the row "
    "has cost where it is as good as base at its end (less than 1: more); < where it never is. With 95 % of 1,000 "
    "bootstrap resamples, over sentences and the runs of a row; of two or three runs these are too narrow. Base is "
    "trained for its own end: one that ends earlier may be better."
)


@dataclass(frozen=True)
class Curve:
    """A score in training, the greater the better, on average over a row's runs.

    Attributes:
        steps: Optimizer steps behind each validation, `(validations,)`.
        values: As observed, then on every resample of sentences and runs, `(1 + resamples, validations)`.
        step_cost: What a step costs, by the key of the cost.
        pieces: Of each sentence, `(sentences,)`.
    """

    steps: np.ndarray
    values: np.ndarray
    step_cost: dict[str, float]
    pieces: np.ndarray

    def costs(self, key: str) -> np.ndarray:
        """The logarithms of what has been spent at each validation, `(validations,)`."""
        return np.log(self.steps * self.step_cost[key])


def curve_of(row: Row) -> Curve | None:
    """The curve of a row whose done runs have kept likelihoods of the same sentences, and say what they cost."""
    kept = [run.sentence_likelihoods() for run in row.done]
    steps = sorted(set.intersection(*map(set, kept))) if kept else []
    found = {key: (row.figure(key), row.figure("steps")) for key in COSTS}
    step_cost = {
        key: cost.mean / count.mean for key, (cost, count) in found.items() if cost and count and cost.mean > 0
    }
    arrays = [[of_run[step] for step in steps] for of_run in kept]
    if len(steps) < 2 or not step_cost or len({array.shape for of_run in arrays for array in of_run}) > 1:
        return None
    log_p = np.array([[array[:, 0] for array in of_run] for of_run in arrays])  # (runs, validations, sentences)
    sentences = log_p.shape[-1]
    resampled = log_p @ (resampled_counts(sentences) / sentences).T  # (runs, validations, resamples)
    drawn = np.random.default_rng(SEED).integers(len(log_p), size=(len(log_p), resampled.shape[-1]))
    means = np.take_along_axis(resampled, drawn[:, None, :], axis=0).mean(0).T  # (resamples, validations)
    observed = log_p.mean((0, 2))
    return Curve(np.array(steps), np.vstack([observed, means]), step_cost, arrays[0][0][:, 1])


def at_same_cost(row: Curve, base: Curve, key: str) -> np.ndarray | None:
    """The row at its end minus base at that cost, `(1 + resamples,)`; None where base's curve does not go there."""
    spent, costs = row.costs(key)[-1], base.costs(key)
    if not costs[0] <= spent <= costs[-1] + 1e-9:
        return None
    after = min(max(1, int(np.searchsorted(costs, spent))), len(costs) - 1)
    share = (spent - costs[after - 1]) / (costs[after] - costs[after - 1])
    there = base.values[:, after - 1] * (1 - share) + base.values[:, after] * share
    return row.values[:, -1] - there


def gain(row: Curve, base: Curve, key: str) -> np.ndarray:
    """How many times less the row has cost where it first is as good as base at its end, `(1 + resamples,)`.

    0 where it never is. Where it is already at its first validation, it may have been before.
    """
    goal, costs = base.values[:, -1:], row.costs(key)
    reached = row.values >= goal
    after = np.maximum(reached.argmax(1), 1)[:, None]
    low, high = (np.take_along_axis(row.values, place, 1) for place in (after - 1, after))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(reached[:, :1], 0, (goal - low) / (high - low))[:, 0]
    spent = costs[after[:, 0] - 1] * (1 - share) + costs[after[:, 0]] * share
    return np.where(reached.any(1), np.exp(base.costs(key)[-1] - spent), 0)


def equal_cost(rows: Sequence[Row]) -> list[Section]:
    """The rows beside base at equal cost as a table; none where base or all others have no curves."""
    base_row = base_of(rows)
    if (base := curve_of(base_row)) is None:
        return []
    curves = [(row.name, curve_of(row)) for row in rows if row is not base_row]
    beside = [(name, curve) for name, curve in curves if curve and np.array_equal(curve.pieces, base.pieces)]
    ends = [f"{curve.values[0, -1]:.2f}".replace("-", MINUS) for _, curve in beside]
    found = [Column("row", [name for name, _ in beside], of_text=True), Column("at its end", ends, detail=True)]
    for key, name in COSTS.items():
        cells = [compared(curve, base, key) for _, curve in beside]
        if any(map(any, cells)):
            spent, apart, gains = map(list, zip(*cells, strict=True))
            found.append(Column(f"{name} / base", spent, detail=True))
            found += [Column(f"at the same {name}", apart), Column(f"gain in {name}", gains)]
    return [Section(f"At equal cost, beside {base_row.name}", found, NOTE)] if beside else []


def compared(row: Curve, base: Curve, key: str) -> tuple[str, str, str]:
    """What a row costs over base, how far it is apart at the same cost, and its gain; empty where nobody knows."""
    if key not in row.step_cost or key not in base.step_cost:
        return "", "", ""
    spent = float(np.exp(row.costs(key)[-1] - base.costs(key)[-1]))
    apart = at_same_cost(row, base, key)
    shown = "" if apart is None else with_range(apart, "+.2f").replace("-", MINUS)
    return f"{spent:.2f}", shown, with_range(gain(row, base, key), ".2f", least=1 / spent)


def with_range(values: np.ndarray, form: str, *, least: float | None = None) -> str:
    """The first value, and where 95 % of the others lie; a 0 is known to be below `least`."""
    ends = np.quantile(values[1:], [0.025, 0.975], method="nearest").tolist()
    value, low, high = (
        f"< {least:{form}}" if least is not None and not one else f"{one:{form}}" for one in (values[0], *ends)
    )
    return value if value == low == high else f"{value} [{low}, {high}]"
