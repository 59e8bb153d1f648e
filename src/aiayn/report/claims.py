"""What the paper claims of its rows, put to these runs: an effect, its interval, and a verdict."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from aiayn.evaluation.significance import Interval
from aiayn.report.rows import METRICS, ONE_SEED, Row, comparable

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told from these runs"
DIRECTIONS = ("worse", "better", "equal")


@dataclass(frozen=True)
class Claim:
    """The metric of one row against that of another one, both named before anything is measured.

    The best of several rows would be chosen by the very figures that are compared: of equal rows, one is then "worse
    than the best of four" far too often.

    Attributes:
        name: Its key in the YAML.
        text: In words, with the paper's section.
        metric: `bleu` or `perplexity`.
        direction: `worse`, `better` or `equal`, of `row`.
        margin: For equal: the difference that does not matter yet, in the metric's units.
    """

    name: str
    text: str
    row: str
    against: str
    metric: str
    direction: str
    margin: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Attributes:
        effect: Metric of the claim's row minus that of the other; None when it cannot be measured.
        verdict: HOLDS, FAILS or UNKNOWN.
        reason: Why it cannot be measured, or what the interval lacks; else empty.
        paper: The effect in the paper's own figures; None when it has none.
    """

    claim: Claim
    effect: Interval | None
    verdict: str
    reason: str = ""
    paper: float | None = None


def read_claim(name: str, entry: Any, known: Collection[str]) -> Claim:
    """A claim from its YAML.

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
    for key in keys[:-1]:
        if entry.get(key) in (None, ""):
            raise ValueError(f"claims.{name}.{key} is missing; a claim has {', '.join(keys[:-1])}.")
    for side in ("row", "against"):
        if entry[side] not in list(known):
            raise ValueError(
                f"claims.{name}.{side} must name one row of this report, or one experiment, got {entry[side]!r}; "
                f"there are {', '.join(get_close_matches(str(entry[side]), known, n=5, cutoff=0))}, among others."
            )
    if entry["row"] == entry["against"]:
        raise ValueError(f"claims.{name} compares {entry['row']} with itself; name another row in against.")
    for key, choices in (("metric", tuple(METRICS)), ("direction", DIRECTIONS)):
        if entry[key] not in choices:
            raise ValueError(f"claims.{name}.{key} must be one of {', '.join(choices)}, got {entry[key]!r}.")
    margin = entry.get("margin")
    if (entry["direction"] == "equal") != (isinstance(margin, int | float) and margin > 0):
        raise ValueError(
            f"claims.{name}.margin must be a number above 0 with direction=equal, and absent otherwise, got {margin}."
        )
    values = {key: str(entry[key]) for key in ("text", "row", "against", "metric", "direction")}
    return Claim(name, margin=margin, **values)


def claims_about(rows: Collection[str], claims: Mapping[str, Any], *, experiments: Collection[str]) -> list[Claim]:
    """The claims both of whose rows are among these.

    Args:
        rows: Names of a sweep's rows, also of those that have not run, or of a folder's.
        claims: As in the YAML, by name; None for one that was taken out.
        experiments: Names of rows that might be in other sweeps.

    Raises:
        ValueError: if a claim is malformed.
    """
    known = {*rows, *experiments}
    read = [read_claim(name, entry, known) for name, entry in claims.items() if entry is not None]
    return [claim for claim in read if {claim.row, claim.against} <= set(rows)]


def judge(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Put a claim to the rows, among which both of its own are; their `samples` must have been filled."""
    by_name = {row.name: row for row in rows}
    row, other = both = by_name[claim.row], by_name[claim.against]
    papers = [one.paper(claim.metric) for one in both]
    paper = None if papers[0] is None or papers[1] is None else papers[0] - papers[1]
    reasons = [f"{one.name} is {one.unfinished}" for one in both if one.unfinished]
    if not reasons:
        reasons = [f"{one.name} has no statistics" for one in both if not one.statistics]
    if not reasons and not comparable(row, other, claim.metric):
        reasons = ["the rows were measured on different sentences, or in different pieces"]
    if reasons:
        return Verdict(claim, None, UNKNOWN, "; ".join(reasons), paper)
    effect = row.minus(other, claim.metric)
    single = min(len(row.done), len(other.done)) == 1
    return Verdict(claim, effect, decide(claim, effect), ONE_SEED if single else "", paper)


def decide(claim: Claim, effect: Interval) -> str:
    """The verdict: which side of the claim the interval is on."""
    if claim.direction == "equal":
        assert claim.margin is not None
        if -claim.margin <= effect.low and effect.high <= claim.margin:
            return HOLDS
        return FAILS if effect.low > claim.margin or effect.high < -claim.margin else UNKNOWN
    claimed_above = (claim.direction == "better") == (claim.metric == "bleu")
    low, high = (effect.low, effect.high) if claimed_above else (-effect.high, -effect.low)
    return HOLDS if low > 0 else FAILS if high < 0 else UNKNOWN
