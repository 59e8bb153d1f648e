"""How far the order of these rows agrees with that of others: the paper's, or another report's.

A small run is worth what it predicts of a large one. So wherever there are figures to compare with, the report says how
well its own figures order the rows: Kendall's tau-b, with the interval that seeds and sentences give it and the p-value
of an order by chance; how many of the pairs that the others clearly separate are in the right order; how many rows are
on the right side of base. And it says what could be hoped for: how well two trainings of the same rows agree with each
other, and the reference's two measures with one another.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from aiayn.evaluation.significance import holm
from aiayn.report.rows import Row, base_of, name_of
from aiayn.runs.run import HELD_OUT

FEWEST = 4  # rows; of three, one order in six is right by chance
DRAWS = 10_000  # of orders by chance
SEED = 12345
SURE = 0.05

Reference = Mapping[str, Mapping[str, float]]  # by score, and by the row's name


@dataclass(frozen=True)
class Agreement:
    """A score of ours beside a score of the reference.

    Attributes:
        ours: What ours is called.
        theirs: What theirs is.
        names: Of the rows that have both.
        x: Theirs, the greater the better, `(rows,)`.
        y: Ours, likewise.
        tau: Kendall's tau-b of the two.
        interval: 95 % of its resamples over sentences and seeds; None where there are none.
        p: The share of all orders by chance with a tau as far from zero.
        right: Pairs in the right order.
        pairs: Pairs that the reference separates by `separated` or more.
        separated: In units of the reference's score.
        right_of_base: Rows on the right side of base.
        beside_base: Rows that the reference separates from base.
        seeds: tau between two trainings of the same rows, on average over the pairs of seeds; None with one seed.
        curve: Steps of training, and tau with the scores of then.
        noise: From where to where base lies in `y`, its mean less and plus its deviation over seeds; None with one.
    """

    ours: str
    theirs: str
    names: list[str]
    x: np.ndarray
    y: np.ndarray
    tau: float
    interval: tuple[float, float] | None
    p: float
    right: int
    pairs: int
    separated: float
    right_of_base: int
    beside_base: int
    seeds: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    noise: tuple[float, float] | None = None

    @property
    def accuracy(self) -> float | None:
        """The share of separated pairs in the right order."""
        return self.right / self.pairs if self.pairs else None


@dataclass(frozen=True)
class Comparison:
    """All agreements of a report with a reference.

    Attributes:
        agreements: Empty where there is nothing to compare with.
        theirs: Whose the reference is.
        ceiling: tau between the reference's own objective and its own perplexity; None where it has not both.
    """

    agreements: Sequence[Agreement]
    theirs: str
    ceiling: float | None = None

    @property
    def reading(self) -> str:
        """How far to believe the order of these rows, in a sentence or two; there is an agreement."""
        # The best of several is chosen by its own figure, so all are corrected together.
        corrected = holm(np.array([one.p for one in self.agreements])).tolist()
        best, p = max(zip(self.agreements, corrected, strict=True), key=lambda one: one[0].tau)
        separated = f" of at least {best.separated:g}" if best.separated else ""
        if p >= SURE or best.tau <= 0:
            told = (
                f"Do not believe the order of these rows: by no score are they ordered as {self.theirs} has them more "
                f"than by chance (best by {best.ours}: tau {best.tau:+.2f}, p {p:.2f})"
            )
        else:
            right = (
                f"{best.accuracy or 0:.0%} of the pairs with a difference{separated} there are in the right order here"
            )
            told = (
                f"By {best.ours} these rows are ordered as {self.theirs} has them with tau {best.tau:+.2f}, more than "
                f"by chance (p {p:.3f}); {right}"
            )
            if early := stopped_early(best):
                told += f", and hardly fewer at step {early:,}"
        if self.ceiling is not None:
            told += f". The two scores of {self.theirs} agree with tau {self.ceiling:+.2f}: about what can be hoped for"
        return f"{told}."


def tau_b(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of `x` `(..., rows)` and `y`, likewise; NaN where all of a side are equal (Kendall 1945).

    scipy's takes one pair of orders; here are thousands at once.
    """
    one, other = np.triu_indices(x.shape[-1], 1)
    signs = [np.sign(side[..., one] - side[..., other]) for side in (x, y)]
    agreeing = (signs[0] * signs[1]).sum(-1)
    untied = [np.abs(sign).sum(-1) for sign in signs]
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreeing / np.sqrt(untied[0] * untied[1])


def chance(x: np.ndarray, y: np.ndarray) -> float:
    """The share of orders by chance whose tau with `y` `(rows,)` is as far from zero as that of `x`."""
    random = np.random.default_rng(SEED)
    orders = random.permuted(np.broadcast_to(x, (DRAWS, len(x))), axis=1)
    as_far = np.abs(tau_b(orders, y)) >= abs(tau_b(x, y)) - 1e-9
    return (int(as_far.sum()) + 1) / (DRAWS + 1)


def compare(
    names: Sequence[str],
    x: np.ndarray,
    y: np.ndarray,
    *,
    base: str,
    separated: float = 0.0,
    ours: str = "",
    theirs: str = "",
    resampled: np.ndarray | None = None,
) -> Agreement:
    """The agreement of two scores of the same rows.

    Args:
        names: Of the rows.
        x: The reference's, the greater the better, `(rows,)`.
        y: Ours, likewise.
        base: Name of the row that the others are compared with.
        separated: Pairs whose `x` are less apart are not counted; equal ones never are.
        ours: What ours is called.
        theirs: What theirs is.
        resampled: Ours on resamples, `(rows, resamples)`.
    """
    one, other = np.triu_indices(len(names), 1)
    apart = x[one] - x[other]
    counted = (np.abs(apart) >= separated - 1e-9) & (apart != 0)
    right = np.sign(apart) == np.sign(y[one] - y[other])
    beside = np.zeros(0, dtype=bool)
    if base in names:
        place = list(names).index(base)
        sides = np.sign(x - x[place])
        beside = (sides == np.sign(y - y[place]))[sides != 0]
    interval = None
    if resampled is not None:
        low, high = np.nanquantile(tau_b(resampled.T, x), [0.025, 0.975]).tolist()
        interval = low, high
    return Agreement(
        ours=ours,
        theirs=theirs,
        names=list(names),
        x=x,
        y=y,
        tau=float(tau_b(x, y)),
        interval=interval,
        p=chance(x, y),
        right=int((right & counted).sum()),
        pairs=int(counted.sum()),
        separated=separated,
        right_of_base=int(beside.sum()),
        beside_base=len(beside),
    )


def agreements(rows: Sequence[Row], reference: Reference, *, min_difference: Mapping[str, float]) -> list[Agreement]:
    """Each score of ours with the same one of the reference, and perplexity and HELD_OUT with its objective too.

    Args:
        rows: Whose `samples` were filled.
        reference: Its figures; of the rows that have none nothing is compared.
        min_difference: By score, what the reference must separate a pair by to count.
    """
    objective = rows[0].objective
    measures = dict.fromkeys([objective, "perplexity", HELD_OUT])
    found = []
    for mine in measures:
        for theirs in dict.fromkeys([mine, objective]):
            known = reference.get(theirs, {})
            own = [row for row in rows if row.name in known and row.figure(mine)]
            x = np.array([oriented(own, theirs, known[row.name]) for row in own])
            if len(own) < FEWEST or len(np.unique(x)) < 2:
                continue
            y = np.array([oriented(own, mine, figure.mean) for row in own if (figure := row.figure(mine))])
            agreement = compare(
                [row.name for row in own],
                x,
                y,
                base=base_of(rows).name,
                separated=min_difference.get(theirs, 0.0),
                ours=name_of(own, mine),
                theirs=name_of(own, theirs),
                resampled=resampled(own, mine),
            )
            agreement = replace(agreement, seeds=between_seeds(own, mine), curve=over_steps(own, mine, x))
            found.append(replace(agreement, noise=noise(base_of(rows), mine)))
    return found


def oriented(rows: Sequence[Row], key: str, value: float | np.ndarray) -> np.ndarray:
    """A score so that the greater one is better; perplexities by their logarithm, whose differences are nats."""
    if key == "perplexity":
        return -np.log(value)
    lower = any(key in row.metrics and not row.metrics[key].higher_is_better for row in rows)
    return np.asarray(-value if lower else value)


def resampled(rows: Sequence[Row], key: str) -> np.ndarray | None:
    """Means over drawn seeds of a score on drawn sentences, `(rows, resamples)`; None unless all rows have it so."""
    if not all(key in row.samples for row in rows):
        return None
    random = np.random.default_rng(SEED)
    drawn = []
    for row in rows:
        samples = row.samples[key]  # (runs, resamples)
        runs = random.integers(len(samples), size=samples.shape)
        drawn.append(oriented(rows, key, np.take_along_axis(samples, runs, axis=0).mean(0)))
    return np.stack(drawn)


def between_seeds(rows: Sequence[Row], key: str) -> float | None:
    """tau between the trainings of one seed and those of another, on average; of the rows that have both."""
    by_seed: dict[object, dict[str, float]] = {}
    for row in rows:
        for run in row.done:
            if (value := row.value(run, key)) is not None:
                by_seed.setdefault(run.config.get("seed"), {})[row.name] = value
    found = []
    for one, other in combinations(by_seed.values(), 2):
        both = [name for name in one if name in other]
        if len(both) >= FEWEST:
            found.append(float(tau_b(*(np.array([side[name] for name in both]) for side in (one, other)))))
    return float(np.nanmean(found)) if found else None


def noise(base: Row, key: str) -> tuple[float, float] | None:
    """From where to where base lies, as `oriented`: its mean less and plus its deviation over seeds; None with one."""
    values = np.array([value for run in base.done if (value := base.value(run, key)) is not None])
    if len(values) < 2:
        return None
    middle, deviation = (
        float(oriented([base], key, values.mean())),
        float(np.std(oriented([base], key, values), ddof=1)),
    )
    return middle - deviation, middle + deviation


def over_steps(rows: Sequence[Row], key: str, x: np.ndarray) -> list[tuple[int, float]]:
    """tau with the reference of the scores on dev in training, at the steps at which all rows have them."""
    curves = []
    for row in rows:
        by_run = [run.validated(key) for run in row.done]
        steps = set.intersection(*map(set, by_run))
        curves.append({step: float(np.mean([values[step] for values in by_run])) for step in steps})
    shared = sorted(set.intersection(*map(set, curves)))
    values = {step: np.array([float(oriented(rows, key, curve[step])) for curve in curves]) for step in shared}
    return [(step, float(tau_b(x, y))) for step, y in values.items()]


def of_paper(rows: Sequence[Row]) -> Reference:
    """The paper's own figures of the rows."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for key in row.config.get("paper") or {}:
            if (value := row.paper(key)) is not None:
                found.setdefault(key, {})[row.name] = value
    return found


def of_report(folder: Path) -> Reference:
    """The figures of another report.

    Args:
        folder: Its own, with table.csv, or that of its runs.

    Raises:
        ValueError: if there is no such table, or it has figures that are no numbers.
    """
    file = next((path for path in (folder / "table.csv", folder / "report" / "table.csv") if path.is_file()), None)
    if file is None:
        raise ValueError(f"against={folder} has no report (table.csv); run task=report there first.")
    found: dict[str, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            for key, value in line.items():
                if key and f"{key}_deviation" in line and value and (name := line.get("row")):
                    try:
                        figure = float(value)
                    except ValueError:
                        figure = math.nan
                    if not math.isfinite(figure):
                        raise ValueError(f"against={folder}: {file} has {key}={value} in row {name}; write it anew.")
                    found.setdefault(key, {})[name] = figure
    return found


def ceiling(reference: Reference, objective: str) -> float | None:
    """tau between the reference's own objective and its own perplexity; None where it has not both."""
    both = [name for name in reference.get(objective, {}) if name in reference.get("perplexity", {})]
    if objective == "perplexity" or len(both) < FEWEST:
        return None
    scores, perplexities = (np.array([reference[key][name] for name in both]) for key in (objective, "perplexity"))
    return float(tau_b(scores, -perplexities))


HEADS = [
    "ours",
    "theirs",
    "rows",
    "tau-b, 95 % interval",
    "p",
    "separated pairs in order",
    "right side of base",
    "seeds",
]


AGREEMENT = (
    "tau-b (Kendall 1945): 1 for the same order, -1 for the contrary one, with 95 % of 1,000 bootstrap resamples over "
    "sentences and seeds; p: two-sided, of 10,000 orders by chance; the sentence above corrects it for the number of "
    "lines (Holm). Greater is better on both sides; perplexities by -ln. tau between seeds: of the same rows, trained "
    "twice."
)


def cells(agreement: Agreement) -> list[str]:
    """An agreement as a line of the table."""

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole} ({part / whole:.0%})" if whole else ""

    low, high = agreement.interval or (None, None)
    between = "" if low is None else f" [{low:+.2f}, {high:+.2f}]"
    return [
        agreement.ours,
        agreement.theirs,
        str(len(agreement.names)),
        f"{agreement.tau:+.2f}{between}",
        f"{agreement.p:.3f}",
        share(agreement.right, agreement.pairs),
        share(agreement.right_of_base, agreement.beside_base),
        "" if agreement.seeds is None else f"{agreement.seeds:+.2f}",
    ]


def stopped_early(agreement: Agreement, *, slack: float = 0.05) -> int | None:
    """The first step from which on tau stays within `slack` of what it is at the last one; None if only there."""
    steps = [step for step, _ in agreement.curve]
    last = agreement.curve[-1][1] if steps else 0.0
    enough = [tau >= last - slack for _, tau in agreement.curve]
    return next((step for place, step in enumerate(steps[:-1]) if all(enough[place:])), None)
