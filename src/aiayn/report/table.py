"""Rows as a table: its columns, what is to know about them, and the claims; formats.py writes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from aiayn.evaluation.significance import Interval
from aiayn.naming import label
from aiayn.report.claims import LEVEL, SENTENCES, Verdict
from aiayn.report.rows import ONE_SEED, SETTINGS, Figure, Row, base_of, devices, differences, measured
from aiayn.runs.run import Run

PLUS_MINUS, MINUS = "\u00b1", "\u2212"
VERDICT_HEADS = ["claim", "effect, 95 % interval", "p", "paper", "verdict"]
APART = "with 95 % interval, over sentences (bootstrap, 1000 resamples) and, where there are several, seeds (Welch's t)"
P_VALUES = (
    "paired bootstrap of BLEU against base, of single runs: two-sided, over sentences and not over seeds, not "
    "corrected for the number of rows"
)
AS_IN_PAPER = "BLEU as in paper"
PAPER_BLEU = "counted by tensor2tensor's script (tokenised, compounds split)"
FRENCH = "; how English-French was counted is not known"
UNLIKE = "; ours by sacreBLEU (13a): half a point or more may lie between them for that alone"
SCALED = (
    "smaller twins of the paper's rows, on other data: compare the order of rows, not the figures themselves; "
    "the plots show distances from base"
)
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
        values = [row.settings.get(key) for row in rows]
        detail = not all(isinstance(value, str) for value in values)
        found.append(Column(name, [setting(value) for value in values], of_text=not detail, detail=detail))
    found += compared("PPL", rows, "perplexity", digits=2)
    found += compared_bleu(rows)
    if any(row.apart for row in rows):
        found.append(Column("BLEU - base", [with_interval(row.apart.get("bleu")) for row in rows]))
    if any(row.p_values for row in rows):
        p_values = [row.p_values.get("bleu") for row in rows]
        found.append(
            Column("p, sentences", ["" if value is None else f"{value:.3f}" for value in p_values], detail=True)
        )
    parameters = [(row.figure("parameters"), row.paper("parameters")) for row in rows]
    found.append(Column("params", [f"{ours.mean / 1e6:.3g}" if ours else "" for ours, _ in parameters], detail=True))
    if any(paper for _, paper in parameters):
        found.append(
            Column("params paper", [f"{paper / 1e6:.3g}" if paper else "" for _, paper in parameters], detail=True)
        )
    found.append(Column("runs", [str(len(row.runs)) for row in rows], detail=True))
    return found


def compared(name: str, rows: Sequence[Row], key: str, *, digits: int) -> list[Column]:
    """A figure with its spread; and, where rows have it, the paper's to so many digits, and ours minus that."""
    figures, papers = [row.figure(key) for row in rows], [row.paper(key) for row in rows]
    found = [Column(name, [with_spread(figure) for figure in figures])]
    if any(paper is not None for paper in papers):
        found.append(Column(f"{name} paper", ["" if paper is None else f"{paper:.{digits}f}" for paper in papers]))
        if any(figures) and not is_scaled(rows):
            found.append(apart(f"{name} - paper", figures, papers))
    return found


def compared_bleu(rows: Sequence[Row]) -> list[Column]:
    """As `compared`, but what the paper's BLEU is taken from is counted as the paper's, where a row has that."""
    columns = compared("BLEU", rows, "bleu", digits=1)
    like = [row.bleu_as_in_paper for row in rows]
    if len(columns) < 3:
        return columns
    if not any(like):
        return [*columns[:2], replace(columns[2], name="sacreBLEU - paper")]
    counted = Column(AS_IN_PAPER, [with_spread(figure) for figure in like], detail=True)
    return [columns[0], counted, columns[1], apart("BLEU - paper", like, [row.paper("bleu") for row in rows])]


def apart(name: str, figures: Sequence[Figure | None], papers: Sequence[float | None]) -> Column:
    """Our figures minus the paper's."""
    return Column(name, [difference(*pair) for pair in zip(figures, papers, strict=True)], detail=True)


def with_spread(figure: Figure | None) -> str:
    """A mean, and its standard deviation where there are several runs."""
    if figure is None:
        return ""
    spread = "" if figure.deviation is None else f" {PLUS_MINUS} {figure.deviation:.2f}"
    return f"{figure.mean:.2f}{spread}"


def difference(ours: Figure | None, paper: float | None) -> str:
    """How far a figure is from the paper's, with its sign; empty when one is not there."""
    return "" if ours is None or paper is None else f"{ours.mean - paper:+.2f}".replace("-", MINUS)


def with_interval(found: Interval | None) -> str:
    """A difference, and its interval in brackets."""
    return "" if found is None else f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]".replace("-", MINUS)


def shown_settings(rows: Sequence[Row]) -> dict[str, str]:
    """Names and keys of the settings that have a column."""
    every = {key for row in rows for key in row.settings}
    if has_paper(rows):
        searched = [key for row in rows for key in row.settings if key.startswith("inference.")]
        differing = [key for key in searched if len({repr(row.settings.get(key)) for row in rows}) > 1]
        return SETTINGS | {label(key, every): key for key in differing}
    keys = list(dict.fromkeys(key for row in rows for key in row.settings if key != "name"))
    differing = [key for key in keys if len({repr(row.settings.get(key)) for row in rows}) > 1]
    if "data.name" in differing:  # says it all, unless something else varies within a corpus
        differing = [
            key
            for key in differing
            if key == "data.name"
            or not key.startswith("data.")
            or len({(repr(row.settings.get("data.name")), repr(row.settings.get(key))) for row in rows})
            > len({repr(row.settings.get("data.name")) for row in rows})
        ]
    follows = {key for key in ("model.d_k", "model.d_v") if all(is_default_width(row, key) for row in rows)}
    return {label(key, every): key for key in differing if key not in follows}


def is_default_width(row: Row, key: str) -> bool:
    """Whether d_k or d_v is what follows from d_model and heads."""
    d_model, heads = row.settings.get("model.d_model"), row.settings.get("model.heads")
    if not d_model or not heads:
        return False
    return bool(row.settings.get(key) == d_model // heads)


def setting(value: Any) -> str:
    """A value of the config, thousands as in the paper (100K)."""
    if isinstance(value, str) and value.startswith("aiayn."):
        return value.rpartition(".")[2]
    if isinstance(value, int) and not isinstance(value, bool) and value and value % 1000 == 0:
        return f"{value // 1000}K"
    return "" if value is None else str(value)


def breaks(rows: Sequence[Row]) -> set[int]:
    """Rows, by number, before which another group of Table 3 begins."""
    return {number for number, (before, row) in enumerate(pairwise(rows), start=1) if before.group != row.group}


def notes(rows: Sequence[Row], command: str) -> Notes:
    """What is to know about the figures: what they were measured on, how, with what, and what is not there."""
    runs = [(row, run) for row in rows for run in row.runs]

    base = base_of(rows)
    apart = f"from {base.name}, {APART}" if any(row.apart for row in rows) else ""
    if any(row.apart and min(len(row.done), len(base.done)) == 1 for row in rows):
        apart += f"; {ONE_SEED}"
    signatures = [run.signature(*measured(run, row), "bleu") for row, run in runs]
    beside_paper = any(row.paper("bleu") is not None for row in rows)
    has_french = any((row.config.get("data") or {}).get("target_language") == "fr" for row in rows)
    is_like = beside_paper and not is_scaled(rows) and any(row.bleu_as_in_paper for row in rows)
    found = [
        ("command", command),
        ("measured on", measured_on(rows)),
        ("BLEU", each(signatures)),
        ("PPL", "of the references, per target piece with EOS, without label smoothing"),
        ("\u00b1", "standard deviation over seeds" if any(len(row.done) > 1 for row in rows) else ""),
        (AS_IN_PAPER, each(run.signature(*measured(run, row), "bleu_paper") for row, run in runs) if is_like else ""),
        ("BLEU paper", PAPER_BLEU + UNLIKE * (not is_like) + FRENCH * has_french if beside_paper else ""),
        ("BLEU - base", apart),
        ("p, sentences", P_VALUES if any(row.p_values for row in rows) else ""),
        ("scale", SCALED if is_scaled(rows) and has_paper(rows) else ""),
        ("commit", each(str(run.result.get("git_commit") or "") for _, run in runs)),
        ("devices", each(devices(run) for row in rows for run in row.done)),
    ]
    for row, run in runs:
        state, other, name = run.state, differences(run), row.called(run)
        if state in ("done", "of another checkpoint") and other:
            found.append(("other settings", f"{name} ran with {', '.join(other[:3])}{', ...' if other[3:] else ''}"))
        elif state != "done":
            found.append((state, f"{name}: {run.error}" if state == "failed" and run.error else name))
    stale = [(row.called(run), ", ".join(run.changed)) for row, run in runs if run.stale]
    found += [("stale", f"{name}: {changed} changed since") for name, changed in stale]
    return [(label, text) for label, text in found if text]


def each(values: Iterable[str]) -> str:
    """Different texts, once each."""
    return "; ".join(dict.fromkeys(value for value in values if value))


def measured_on(rows: Sequence[Row]) -> str:
    """On what the figures were measured: `dev of wmt14_ende, checkpoint: last`."""
    return each(place(row, run) for row in rows for run in row.runs)


def place(row: Row, run: Run) -> str:
    """On what a run's figures were measured; of an averaged checkpoint, what was averaged."""
    checkpoint, split = measured(run, row)
    data = (run.result.get("config") or run.config).get("data") or {}
    averaged = f", of {steps_averaged(run)}" if checkpoint == "averaged" and run.averaged_steps else ""
    return f"{split} of {data.get('name', '?')}, checkpoint: {checkpoint}{averaged}"


def steps_averaged(run: Run) -> str:
    """The steps whose weights were averaged, in words, and whether they are fewer than the run asked for."""
    steps = run.averaged_steps
    gaps = {later - earlier for earlier, later in pairwise(steps)}
    text = f"steps {', '.join(f'{step:,}' for step in steps)}"
    if len(steps) > 2 and len(gaps) == 1:
        text = f"{len(steps)} steps from {steps[0]:,} to {steps[-1]:,}, every {gaps.pop():,}"
    asked = ((run.result.get("config") or run.config).get("training") or {}).get("keep_checkpoints")
    fewer = isinstance(asked, int) and len(steps) < asked
    return f"{text} ({len(steps)} only, {asked} were asked for)" if fewer else text


def has_paper(rows: Sequence[Row]) -> bool:
    """Whether the paper has figures for one of the rows."""
    return any(value is not None for row in rows for value in (row.config.get("paper") or {}).values())


def is_scaled(rows: Sequence[Row]) -> bool:
    """Whether one of the rows is a smaller twin of the paper's."""
    return any((row.config.get("scale") or {}).get("name", "full") != "full" for row in rows)


def cells(shown: Sequence[Column]) -> list[list[str]]:
    """The columns' cells by row."""
    return [list(line) for line in zip(*(column.cells for column in shown), strict=True)]


def verdict_cells(verdict: Verdict) -> list[str]:
    """A claim in words, what was found, its p-value, what the paper has, and the verdict."""
    claim, effect = verdict.claim, verdict.effect
    unit = {"bleu": "BLEU", "perplexity": "PPL"}[claim.metric]
    found = f"{with_interval(effect)} {unit}" if effect else ""
    paper = "" if verdict.paper is None else f"{verdict.paper:+.2f}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    p = "" if verdict.p is None else f"{verdict.p:.3f}" if verdict.p >= 0.001 else "< 0.001"
    return [claim.text, found, p, paper.replace("-", MINUS), verdict.verdict + reason]


def verdict_note(verdicts: Sequence[Verdict]) -> str:
    """How the verdicts were come to."""
    decided = sum(verdict.p is not None for verdict in verdicts)
    found = []
    if decided:
        found.append(
            f"p: by Student's t, with the variance of the interval (equality: two one-sided tests), corrected for "
            f"{decided} claims together (Holm); a verdict needs p < {LEVEL:g}."
        )
    if any(verdict.verdict == SENTENCES for verdict in verdicts):
        found.append(
            f"{SENTENCES.capitalize()}: with one seed the interval has no spread of training in it; a verdict needs "
            "two seeds of both rows, as with seed=1,2,3."
        )
    return " ".join(found)
