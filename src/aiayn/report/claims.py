"""What the paper claims of its rows, put to these runs: an effect, its interval, and a verdict."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from aiayn.evaluation.significance import SEED, Interval, interval, over_seeds
from aiayn.report.rows import METRICS, Row, comparable

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told from these runs"
DIRECTIONS = ("worse", "better", "equal")


@dataclass(frozen=True)
class Claim:
    """The metric of `rows` against that of `against`; where several are named, the best of them counts.

    Attributes:
        name: Its key in the YAML.
        text: In words, with the paper's section.
        metric: `bleu` or `perplexity`.
        direction: `worse`, `better` or `equal`, of `rows`.
        margin: For equal: the difference that does not matter yet, in the metric's units.
    """

    name: str
    text: str
    rows: tuple[str, ...]
    against: tuple[str, ...]
    metric: str
    direction: str
    margin: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Attributes:
        effect: Metric of the claim's rows minus that of the others; None when it cannot be measured.
        verdict: HOLDS, FAILS or UNKNOWN.
        reason: Why it cannot be measured; else empty.
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
        raise ValueError(f"claims.{name} must have text, rows, against, metric and direction, got {entry!r}.")
    keys = [field.name for field in fields(Claim) if field.name != "name"]
    for key in entry:
        if key not in keys:
            raise ValueError(f"claims.{name}.{key} is no key of a claim; there are {', '.join(keys)}.")
    for key in keys[:-1]:
        if entry.get(key) in (None, "", []):
            raise ValueError(f"claims.{name}.{key} is missing; a claim has {', '.join(keys[:-1])}.")
    sides = {side: (entry[side],) if isinstance(entry[side], str) else entry[side] for side in ("rows", "against")}
    for side, named in sides.items():
        if not isinstance(named, list | tuple):
            raise ValueError(f"claims.{name}.{side} must be a list of rows, got {named!r}.")
        for row in named:
            if row not in known:
                raise ValueError(
                    f"claims.{name}.{side} names {row!r}, which is neither a row of this report nor an experiment; "
                    f"there are {', '.join(get_close_matches(str(row), known, n=5, cutoff=0))}, among others."
                )
    if both := set(sides["rows"]) & set(sides["against"]):
        raise ValueError(f"claims.{name} compares {min(both)} with itself; name it in rows or in against.")
    for key, choices in (("metric", tuple(METRICS)), ("direction", DIRECTIONS)):
        if entry[key] not in choices:
            raise ValueError(f"claims.{name}.{key} must be one of {', '.join(choices)}, got {entry[key]!r}.")
    margin = entry.get("margin")
    if (entry["direction"] == "equal") != (isinstance(margin, int | float) and margin > 0):
        raise ValueError(
            f"claims.{name}.margin must be a number above 0 with direction=equal, and absent otherwise, got {margin}."
        )
    values = {key: str(entry[key]) for key in ("text", "metric", "direction")}
    return Claim(name, rows=tuple(sides["rows"]), against=tuple(sides["against"]), margin=margin, **values)


def judge(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Put a claim to the runs; the rows' `samples` must have been filled."""
    by_name = {row.name: row for row in rows}
    best = np.max if claim.metric == "bleu" else np.min
    named = [*claim.rows, *claim.against]
    paper = paper_effect(claim, by_name, best)
    reasons = [
        f"{name} is {'not among the rows' if name not in by_name else by_name[name].unfinished}"
        for name in named
        if name not in by_name or by_name[name].unfinished
    ]
    if not reasons:
        reasons = [f"{name} has no statistics" for name in named if not by_name[name].statistics]
    if not reasons and not comparable([by_name[name] for name in named]):
        reasons = ["the rows were measured on different sentences"]
    if reasons:
        return Verdict(claim, None, UNKNOWN, "; ".join(reasons), paper)
    observed = {name: by_name[name].observed(claim.metric) for name in named}
    samples = {  # each row draws its seeds apart from the others, but the same ones for every claim
        name: over_seeds(by_name[name].samples[claim.metric], np.random.default_rng([SEED, rows.index(by_name[name])]))
        for name in named
    }

    def effect(values: Mapping[str, Any]) -> Any:
        mine, theirs = ([values[name] for name in side] for side in (claim.rows, claim.against))
        return best(mine, axis=0) - best(theirs, axis=0)

    found = interval(float(effect(observed)), effect(samples))
    return Verdict(claim, found, decide(claim, found), paper=paper)


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


def paper_effect(claim: Claim, rows: Mapping[str, Row], best: Callable[..., Any]) -> float | None:
    """The effect in the paper's own figures; None unless it has all of them."""
    sides = claim.rows, claim.against
    figures = [[rows[name].paper(claim.metric) if name in rows else None for name in side] for side in sides]
    return None if None in figures[0] + figures[1] else float(best(figures[0]) - best(figures[1]))


def judge_all(claims: Mapping[str, Any], rows: Sequence[Row], experiments: Collection[str]) -> list[Verdict]:
    """Put every claim that is about one of these rows to the runs.

    Args:
        claims: As in the YAML, by name.
        rows: Of the report.
        experiments: Names of rows that might have been run, but are not in this report.

    Raises:
        ValueError: if a claim is malformed.
    """
    present = {row.name for row in rows}
    read = [read_claim(name, entry, present | set(experiments)) for name, entry in claims.items() if entry is not None]
    return [judge(claim, rows) for claim in read if present & set(claim.rows)]
