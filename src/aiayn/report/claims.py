"""Claims about rows, the paper's or one's own, put to these runs: an effect, its interval, and a verdict.

A verdict is about training, not about the runs at hand: without two seeds of both rows there is none. Those of one
report are corrected together, so that of claims about equal rows any is decided in at most about 5 % of the reports.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from aiayn.evaluation.significance import Interval, holm
from aiayn.report.distance import comparable
from aiayn.report.rows import Row, digits_of, is_scaled, name_of

HOLDS, FAILS, UNKNOWN, SENTENCES = "holds", "does not hold", "cannot be told", "only on these sentences"
LEVEL = 0.05  # of all claims of a report together
DIRECTIONS = ("worse", "better", "equal")


@dataclass(frozen=True)
class Claim:
    """The metric of one row against that of another one, both named before anything is measured.

    The best of several rows would be chosen by the very figures that are compared: of equal rows, one is then "worse
    than the best of four" far too often.

    Attributes:
        name: Its key in the YAML.
        text: In words, with the paper's section.
        metric: Its key, as `bleu`.
        direction: `worse`, `better` or `equal`, of `row`.
        margin: For equal: the difference that does not matter yet, in the metric's units.
        carries_over: Whether smaller twins of the rows are expected to show it; None where nobody has said.
        because: Why, or why not. Written before they are trained, it keeps one from explaining whatever comes.
    """

    name: str
    text: str
    row: str
    against: str
    metric: str
    direction: str
    margin: float | None = None
    carries_over: bool | None = None
    because: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Attributes:
        effect: Metric of the claim's row minus that of the other; None when it cannot be measured.
        verdict: HOLDS, FAILS, UNKNOWN, or SENTENCES: with one seed the interval is of nothing else.
        reason: Why it cannot be measured; else empty.
        paper: The effect in the paper's own figures; None when it has none.
        p: Of the claim, corrected for how many are decided together; None where none is decided.
        unit: What the metric is called.
        digits: Decimals of its figures.
        higher_is_better: Of the metric.
        scaled: Whether the rows are smaller twins.
    """

    claim: Claim
    effect: Interval | None
    verdict: str
    reason: str = ""
    paper: float | None = None
    p: float | None = None
    unit: str = ""
    digits: int = 2
    higher_is_better: bool = True
    scaled: bool = False


def read_claim(name: str, entry: Any, known: Collection[str]) -> Claim:
    """A claim from its YAML; whether its metric is measured is asked where its rows are there.

    Args:
        name: Its key.
        entry: Its content.
        known: Names that rows may have.

    Raises:
        ValueError: with the key, the value and what it may be.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(f"claims.{name} must have text, row, against, metric and direction, got {entry!r}.")
    keys = [field.name for field in fields(Claim) if field.name != "name"]
    for key in entry:
        if key not in keys:
            raise ValueError(f"claims.{name}.{key} is no key of a claim; there are {', '.join(keys)}.")
    needed = keys[: keys.index("margin")]
    for key in needed:
        if entry.get(key) in (None, ""):
            raise ValueError(f"claims.{name}.{key} is missing; a claim has {', '.join(needed)}.")
    for side in ("row", "against"):
        if entry[side] not in list(known):
            raise ValueError(
                f"claims.{name}.{side} must name one row of this report, or one experiment, got {entry[side]!r}; "
                f"there are {', '.join(get_close_matches(str(entry[side]), known, n=5, cutoff=0))}, among others."
            )
    if entry["row"] == entry["against"]:
        raise ValueError(f"claims.{name} compares {entry['row']} with itself; name another row in against.")
    if entry["direction"] not in DIRECTIONS:
        raise ValueError(f"claims.{name}.direction must be one of {', '.join(DIRECTIONS)}, got {entry['direction']!r}.")
    margin = entry.get("margin")
    if (entry["direction"] == "equal") != (isinstance(margin, int | float) and margin > 0):
        raise ValueError(
            f"claims.{name}.margin must be a number above 0 with direction=equal, and absent otherwise, got {margin}."
        )
    carries_over, because = entry.get("carries_over"), entry.get("because")
    if not isinstance(carries_over, bool | None) or (carries_over is None) != (because is None):
        raise ValueError(
            f"claims.{name}.carries_over must be true or false, with the reason in because, got {carries_over} and "
            f"{because}; or leave both out."
        )
    values = {key: str(entry[key]) for key in needed}
    return Claim(name, margin=margin, carries_over=carries_over, because=str(because or ""), **values)


def claims_about(
    rows: Collection[str], claims: Mapping[str, Any], *, experiments: Collection[str], metrics: Collection[str]
) -> list[Claim]:
    """The claims both of whose rows are among these.

    Args:
        rows: Names of a sweep's rows, also of those that have not run, or of a folder's.
        claims: As in the YAML, by name; None for one that was taken out.
        experiments: Names of rows that might be in other sweeps.
        metrics: Keys of what is measured in these rows.

    Raises:
        ValueError: if a claim is malformed, or one about these rows has a metric that is not measured.
    """
    known = {*rows, *experiments}
    read = [read_claim(name, entry, known) for name, entry in claims.items() if entry is not None]
    found = [claim for claim in read if {claim.row, claim.against} <= set(rows)]
    for claim in found:
        if claim.metric not in metrics:
            raise ValueError(
                f"claims.{claim.name}.metric must be one of {', '.join(metrics)}, got {claim.metric!r}; "
                f"add it to metrics, or leave the claim out with claims.{claim.name}=null."
            )
    return found


def judge(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """Put claims to the rows, among which all that they name are; the rows' `samples` must have been filled.

    Returns:
        One verdict for each claim, in their order; p-values are corrected for the number of those that can be decided.
    """
    scaled = is_scaled(rows)
    measured = [replace(measure(claim, rows), scaled=scaled) for claim in claims]
    adjusted = iter(holm(np.array([one.p for one in measured if one.p is not None])).tolist())
    return [decide(replace(one, p=next(adjusted))) if one.p is not None else one for one in measured]


def measure(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """The effect that a claim is about, its p-value if it can be decided, and no decision yet."""
    by_name = {row.name: row for row in rows}
    row, other = both = by_name[claim.row], by_name[claim.against]
    papers = [one.paper(claim.metric) for one in both]
    paper = None if papers[0] is None or papers[1] is None else papers[0] - papers[1]
    reasons = [f"{one.name} is {one.unfinished}" for one in both if one.unfinished]
    if not reasons:
        reasons = [f"{one.name} has no statistics" for one in both if claim.metric not in one.samples]
    if not reasons and not comparable(row, other, claim.metric):
        reasons = ["the rows were measured on different sentences, or in different pieces"]
    if reasons:
        return Verdict(claim, None, UNKNOWN, "; ".join(reasons), paper)
    effect, metric = row.minus(other, claim.metric), row.metrics[claim.metric]
    found = Verdict(claim, effect, SENTENCES, paper=paper, higher_is_better=metric.higher_is_better)
    found = replace(found, unit=name_of(both, claim.metric), digits=digits_of(one.figure(claim.metric) for one in both))
    if min(len(row.done), len(other.done)) == 1:
        return found
    return replace(found, verdict=UNKNOWN, p=p_value(effect, claim.margin))


def p_value(effect: Interval, margin: float | None) -> float:
    """Of the claim or of its contrary, whichever the effect is nearer to: how seldom it would look so if it were wrong.

    Args:
        effect: Its variance is that of its interval.
        margin: None: whether it is above or below 0, two-sided. Else whether it is within the margin, by two one-sided
            tests (Schuirmann 1987), or outside.
    """
    if margin is None:
        return effect.p
    within = max(effect.p_above(-margin), effect.p_below(margin))
    return min(within, 2 * min(effect.p_above(margin), effect.p_below(-margin)))


def decide(verdict: Verdict) -> Verdict:
    """On which side of the claim the effect is, where its p-value allows to say so."""
    claim, effect, p = verdict.claim, verdict.effect, verdict.p
    assert effect is not None
    assert p is not None
    if claim.margin is not None:
        holds = abs(effect.value) <= claim.margin
    else:
        holds = (effect.value > 0) == ((claim.direction == "better") == verdict.higher_is_better)
    return replace(verdict, verdict=UNKNOWN if p >= LEVEL else HOLDS if holds else FAILS)
