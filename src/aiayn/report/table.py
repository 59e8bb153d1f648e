"""Rows as a table: its columns, what is to know about them, and the claims; formats.py writes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from aiayn.evaluation.significance import Interval
from aiayn.naming import label, labels
from aiayn.report.claims import LEVEL, SENTENCES, Verdict
from aiayn.report.rows import (
    SETTINGS,
    Figure,
    Row,
    differing,
    digits_of,
    is_scaled,
    name_of,
)
from aiayn.runs.run import HELD_OUT

PLUS_MINUS, MINUS = "\u00b1", "\u2212"
VERDICT_HEADS = ["claim", "effect, 95 % interval", "p", "paper", "verdict"]
AS_IN_PAPER = "BLEU as in paper"
SOURCES = ("paper", "published")  # of figures that a config puts beside ours, by the keys of scores
# Columns of what a row costs: their heads, keys, and units.
COSTS = (("params", "parameters", 1e6), ("mult-adds", "multiply_adds", 1e6), ("s/step", "step_seconds", 1.0))
Notes = list[tuple[str, str]]  # labels and texts


@dataclass(frozen=True)
class Column:
    """A column as it is shown.

    Attributes:
        name: Its head.
        cells: Text, one for each row.
        of_text: Whether it holds text and not figures.
        detail: Whether the terminal may leave it out when it is narrow.
    """

    name: str
    cells: list[str]
    of_text: bool = False
    detail: bool = False


@dataclass(frozen=True)
class Section:
    """A further table, which may be missing, and what is to know about it."""

    title: str
    columns: Sequence[Column]
    note: str = ""


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of the paper's Table 3 where rows have figures of the paper, else the settings that differ."""
    found = []
    if any(row.group for row in rows):
        found.append(
            Column(
                "", [f"({group})" if len(group := row.group) == 1 else "" for row in rows], of_text=True, detail=True
            )
        )
    found.append(Column("row", [row.name for row in rows], of_text=True))
    found.append(Column("state", [row.state for row in rows], of_text=True))
    for name, key in shown_settings(rows).items():
        values = [row.told.get(key) for row in rows]
        detail = not all(isinstance(value, str) for value in values)
        found.append(Column(name, setting_cells(key, values), of_text=not detail, detail=detail))
    for key in shown_scores(rows):
        found += compared_bleu(rows) if key == "bleu" else compared(rows, key)
    objective = objective_of(rows)
    if any(objective in row.apart for row in rows):
        digits = digits_of([row.figure(objective) for row in rows])
        apart = [with_interval(row.apart.get(objective), digits) for row in rows]
        found.append(Column(f"{name_of(rows, objective)} - base", apart))
    if any(objective in row.p_values for row in rows):
        p_values = [row.p_values.get(objective) for row in rows]
        found.append(Column("p (Holm)", ["" if value is None else f"{value:.3f}" for value in p_values], detail=True))
    if any(row.published_effect is not None for row in rows):
        found.append(Column("published - base", [published_effect(row, rows) for row in rows], detail=True))
    if any(HELD_OUT in row.apart for row in rows):
        apart = [with_interval(row.apart.get(HELD_OUT)) for row in rows]
        found.append(Column(f"{name_of(rows, HELD_OUT)} - base", apart, detail=True))
    for name, key, unit in COSTS:
        ours, papers = [row.figure(key) for row in rows], [row.paper(key) for row in rows]
        if any(ours) or key == "parameters":
            cost = [f"{figure.mean / unit:.3g}" if figure else "" for figure in ours]
            found.append(Column(name, cost, detail=True))
        if any(papers):
            found.append(Column(f"{name} paper", [f"{of / unit:.3g}" if of else "" for of in papers], detail=True))
    found.append(Column("runs", [str(len(row.runs)) for row in rows], detail=True))
    return with_others(found, rows)


def published_effect(row: Row, rows: Sequence[Row]) -> str:
    """What others report the idea of a row to change: `+0.30 BLEU`."""
    effect = row.published_effect
    if effect is None:
        return ""
    return f"{effect:+.2f} {name_of(rows, row.config['published']['metric'])}".replace("-", MINUS, 1)


def others(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What stands below the rows (`report.others`): names of what is not trained here, and its reported scores."""
    return {name: of for row in rows for name, of in ((row.config.get("report") or {}).get("others") or {}).items()}


def with_others(shown: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns with the `others` below: their names, and their scores beside the paper's of our rows."""
    below = others(rows)
    cells: dict[str, list[str]] = {"row": list(below)}
    for key in shown_scores(rows):
        cells[f"{name_of(rows, key)} paper"] = as_reported([of.get(key) for of in below.values()])
    return [replace(column, cells=[*column.cells, *cells.get(column.name, [""] * len(below))]) for column in shown]


def objective_of(rows: Sequence[Row]) -> str:
    """The key of the score that the table goes by: the objective of the first row."""
    return rows[0].objective


def shown_scores(rows: Sequence[Row]) -> list[str]:
    """Keys of the scores that have columns: perplexity, what is reported elsewhere and measured here, the objective."""
    reported = [key for row in rows for source in SOURCES for key in row.reported(source)]
    scores = [key for key in reported if any(key in row.metrics or key in row.scored for row in rows)]
    return list(dict.fromkeys(["perplexity", *scores, objective_of(rows)]))


def compared(rows: Sequence[Row], key: str) -> list[Column]:
    """A score with its spread; and, where rows have it, the paper's or a published one, and ours minus that."""
    name, figures = name_of(rows, key), [row.figure(key) for row in rows]
    digits = digits_of(figures)
    found = [Column(name, [with_spread(figure, digits) for figure in figures])]
    for source in SOURCES:
        theirs = [row.paper(key, source) for row in rows]
        if any(value is not None for value in theirs):
            found.append(Column(f"{name} {source}", as_reported(theirs)))
            if any(figures) and not is_scaled(rows):
                found.append(apart(f"{name} - {source}", figures, theirs, digits))
    return found


def as_reported(values: Sequence[float | None]) -> list[str]:
    """Figures of others, all with the decimals of the one that has most."""
    decimals = max((len(str(value).partition(".")[2]) for value in values if value is not None), default=0)
    return ["" if value is None else f"{value:.{decimals}f}" for value in values]


def compared_bleu(rows: Sequence[Row]) -> list[Column]:
    """As `compared`, but what the paper's BLEU is taken from is counted as the paper's, where a row has that."""
    columns = compared(rows, "bleu")
    like = [row.bleu_as_in_paper for row in rows]
    place = next((number for number, column in enumerate(columns) if column.name == "BLEU - paper"), None)
    if place is None:
        return columns
    if not any(like):
        columns[place] = replace(columns[place], name="sacreBLEU - paper")
        return columns
    columns[place] = apart("BLEU - paper", like, [row.paper("bleu") for row in rows])
    columns.insert(1, Column(AS_IN_PAPER, [with_spread(figure) for figure in like], detail=True))
    return columns


def apart(name: str, figures: Sequence[Figure | None], papers: Sequence[float | None], digits: int = 2) -> Column:
    """Our figures minus the paper's."""
    return Column(name, [difference(*pair, digits) for pair in zip(figures, papers, strict=True)], detail=True)


def with_spread(figure: Figure | None, digits: int = 2) -> str:
    """A mean, and its standard deviation where there are several runs."""
    if figure is None:
        return ""
    spread = "" if figure.deviation is None else f" {PLUS_MINUS} {figure.deviation:.{digits}f}"
    return f"{figure.mean:.{digits}f}{spread}"


def difference(ours: Figure | None, paper: float | None, digits: int = 2) -> str:
    """How far a figure is from the paper's, with its sign; empty when one is not there."""
    return "" if ours is None or paper is None else f"{ours.mean - paper:+.{digits}f}".replace("-", MINUS)


def with_interval(found: Interval | None, digits: int = 2) -> str:
    """A difference, and its interval in brackets."""
    if found is None:
        return ""
    value, low, high = (f"{number:+.{digits}f}".replace("-", MINUS) for number in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def shown_settings(rows: Sequence[Row]) -> dict[str, str]:
    """Names and keys of the settings that have a column."""
    every = {key for row in rows for key in row.settings}
    keys = [key for key in differing(rows) if key != "name"]
    if has_paper(rows):
        return SETTINGS | {label(key, every): key for key in keys if key.startswith("inference.")}
    if "data.name" in keys:  # says it all, unless something else varies within a corpus
        keys = [
            key
            for key in keys
            if key == "data.name"
            or not key.startswith("data.")
            or len({(repr(row.told.get("data.name")), repr(row.told.get(key))) for row in rows})
            > len({repr(row.told.get("data.name")) for row in rows})
        ]
    follows = {key for key in ("model.d_k", "model.d_v") if all(is_default_width(row, key) for row in rows)}
    return {label(key, every): key for key in keys if key not in follows}


def is_default_width(row: Row, key: str) -> bool:
    """Whether d_k or d_v is what follows from d_model and heads."""
    d_model, heads = row.told.get("model.d_model"), row.told.get("model.heads")
    if not d_model or not heads:
        return False
    return bool(row.told.get(key) == d_model // heads)


def setting_cells(key: str, values: Sequence[Any]) -> list[str]:
    """The values of a key: text as in the names of rows, a class by its own name; figures as the paper has them."""
    short = labels(key, values)
    return [text if isinstance(of, str) else setting(of) for of, text in zip(values, short, strict=True)]


def setting(value: Any) -> str:
    """A value of the config, thousands as in the paper (100K)."""
    if isinstance(value, int) and not isinstance(value, bool) and value and value % 1000 == 0:
        return f"{value // 1000}K"
    return "" if value is None else str(value)


def breaks(rows: Sequence[Row]) -> set[int]:
    """Rows, by number, before which another group of Table 3 begins, or the `others`."""
    groups = {number for number, (before, row) in enumerate(pairwise(rows), start=1) if before.group != row.group}
    return groups | {len(rows)} if others(rows) else groups


def is_less_better(rows: Sequence[Row], key: str) -> bool:
    """Whether the lower of two scores is the better one."""
    return any(key in row.metrics and not row.metrics[key].higher_is_better for row in rows)


def each(values: Iterable[str]) -> str:
    """Different texts, once each."""
    return "; ".join(dict.fromkeys(value for value in values if value))


def has_paper(rows: Sequence[Row]) -> bool:
    """Whether the paper has figures for one of the rows."""
    return any(value is not None for row in rows for value in (row.config.get("paper") or {}).values())


def cells(shown: Sequence[Column]) -> list[list[str]]:
    """The columns' cells by row."""
    return [list(line) for line in zip(*(column.cells for column in shown), strict=True)]


def verdict_cells(verdict: Verdict) -> list[str]:
    """A claim in words, what was found, its p-value, what the paper has, and the verdict."""
    claim, effect = verdict.claim, verdict.effect
    found = f"{with_interval(effect, verdict.digits)} {verdict.unit}" if effect else ""
    paper = "" if verdict.paper is None else f"{verdict.paper:+.{verdict.digits}f}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    p = "" if verdict.p is None else f"{verdict.p:.3f}" if verdict.p >= 0.001 else "< 0.001"
    text = claim.text
    if verdict.scaled and claim.carries_over is not None:
        text += f" Expected of smaller twins: {'yes' if claim.carries_over else 'no'}, {claim.because}"
    return [text, found, p, paper.replace("-", MINUS), verdict.verdict + reason]


def verdict_note(verdicts: Sequence[Verdict]) -> str:
    """How the verdicts were come to."""
    decided = sum(verdict.p is not None for verdict in verdicts)
    found = []
    if decided:
        found.append(
            f"p: by Student's t, with the variance of the interval (equality: two one-sided tests), corrected for "
            f"the number of claims, {decided} (Holm); a verdict needs p < {LEVEL:g}."
        )
    if any(verdict.verdict == SENTENCES for verdict in verdicts):
        found.append(
            f"{SENTENCES.capitalize()}: with one seed the interval has no spread of training in it; a verdict needs "
            "two seeds of both rows, as with seed=1,2,3."
        )
    return " ".join(found)
