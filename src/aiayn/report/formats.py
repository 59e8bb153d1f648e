"""A table in its formats: for the terminal, Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from aiayn.report.agreement import HEADS, Comparison
from aiayn.report.agreement import cells as agreement_cells
from aiayn.report.claims import Verdict
from aiayn.report.rows import RATIOS, SETTINGS, Row
from aiayn.report.table import (
    MINUS,
    PLUS_MINUS,
    SOURCES,
    VERDICT_HEADS,
    Column,
    Notes,
    Section,
    breaks,
    cells,
    columns,
    each,
    shown_scores,
    shown_settings,
    verdict_cells,
    verdict_note,
)
from aiayn.runs.run import HELD_OUT
from aiayn.terminal import visible

if TYPE_CHECKING:
    from rich.table import Table as RichTable

PAPER = {"flops": "counted_flops"}  # where the paper's figure that is counted alike has another name
TEX_NAMES = {
    "N": "$N$",
    "d_model": r"$d_{\mathrm{model}}$",
    "d_ff": r"$d_{\mathrm{ff}}$",
    "h": "$h$",
    "d_k": "$d_k$",
    "d_v": "$d_v$",
    "P_drop": r"$P_{\mathrm{drop}}$",
    "eps_ls": r"$\epsilon_{\mathrm{ls}}$",
    "params": r"params $\times 10^6$",
}
TEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # which a line's end, and so does *, would take for its own
    "*": "{*}",
    PLUS_MINUS: r"$\pm$",
    MINUS: "$-$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def to_csv(rows: Sequence[Row]) -> str:
    """One line a row, with full precision."""
    scores = list(dict.fromkeys([*shown_scores(rows), *(key for row in rows for key in row.scored)]))
    scores += [HELD_OUT] * any(HELD_OUT in row.samples for row in rows)
    settings = {name if SETTINGS.get(name) == key else key: key for name, key in shown_settings(rows).items()}
    lines = []
    for row in rows:
        line: dict[str, Any] = {"row": row.name, "group": row.group}
        line |= {name: row.told.get(key) for name, key in settings.items()}
        for name in (*scores, "parameters", "flops", "training_seconds", *RATIOS):
            figure = row.figure(name)
            line |= {name: figure and figure.mean, f"{name}_deviation": figure and figure.deviation}
            for source in SOURCES:
                if any(one.paper(PAPER.get(name, name), source) is not None for one in rows):
                    line[f"{source}_{name}"] = row.paper(PAPER.get(name, name), source)
        line["paper_seconds_x_devices_x_rate"] = row.paper("flops")
        line["published_effect"] = row.published_effect
        for name in scores:
            apart = row.apart.get(name)
            line |= {f"{name}_minus_base": apart and apart.value}
            line |= {f"{name}_minus_base_low": apart and apart.low, f"{name}_minus_base_high": apart and apart.high}
            line[f"{name}_p_holm"] = row.p_values.get(name)
        averaged = [" ".join(map(str, run.averaged_steps)) for run in row.done] if row.checkpoint == "averaged" else []
        done = len(row.done)
        lines.append(
            {
                **line,
                "runs": len(row.runs),
                "done": done,
                "checkpoint": row.checkpoint,
                "averaged_steps": each(averaged),
                "split": row.split,
                "state": row.state,
            }
        )
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for line_of_cells in (lines[0], *(line.values() for line in lines)):
        writer.writerow([inert(cell) if isinstance(cell, str) else cell for cell in line_of_cells])
    return output.getvalue()


def inert(text: str) -> str:
    """Text that a spreadsheet does not take for a formula, nor a terminal for a command; figures are no text."""
    return visible(f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text)


def to_markdown(
    rows: Sequence[Row],
    notes: Notes,
    verdicts: Sequence[Verdict],
    comparison: Comparison,
    sections: Sequence[Section] = (),
) -> str:
    """A table as GitHub shows it, what is to know about it, claims, what the order of the rows is worth, the rest."""
    shown = columns(rows)
    parts = [markdown_table([column.name for column in shown], [column.of_text for column in shown], cells(shown))]
    parts.append("\n".join(f"- **{label}**: {markdown(text)}" for label, text in notes))
    if verdicts:
        lines = [verdict_cells(verdict) for verdict in verdicts]
        parts.append(markdown_table(VERDICT_HEADS, [True, False, False, False, True], lines))
        parts.append(markdown(verdict_note(verdicts)))
    if comparison.agreements:
        parts.append(markdown(comparison.reading))
        lines = [agreement_cells(agreement) for agreement in comparison.agreements]
        parts.append(markdown_table(HEADS, [True, True, *[False] * (len(HEADS) - 2)], lines))
    for section in sections:
        heads, of_text = [column.name for column in section.columns], [column.of_text for column in section.columns]
        parts += [f"## {markdown(section.title)}", markdown_table(heads, of_text, cells(section.columns))]
        parts.append(markdown(section.note))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(heads: Sequence[str], of_text: Sequence[bool], lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells with their heads, figures to the right."""
    rules = [":--" if text else "--:" for text in of_text]
    body = [[markdown(head) for head in heads], rules, *([markdown(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def markdown(text: str) -> str:
    """Text that Markdown shows as it is; underscores inside words do no harm and stay readable."""
    text = visible(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\`*|\[\]~$]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def to_latex(rows: Sequence[Row], notes: Notes) -> str:
    """A tabular of booktabs, with a rule between the paper's groups; what is to know about it is in comments."""
    shown = columns(rows)
    ends = breaks(rows)
    body = []
    for number, line in enumerate(cells(shown)):
        body += [r"\midrule"] * (number in ends)
        body.append(" & ".join(map(latex, line)) + r" \\")
    lines = [
        r"% needs \usepackage{booktabs}",
        *(f"% {latex(label)}: {latex(text)}" for label, text in notes),
        rf"\begin{{tabular}}{{{''.join('l' if column.of_text else 'r' for column in shown)}}}",
        r"\toprule",
        " & ".join(TEX_NAMES.get(column.name) or latex(column.name) for column in shown) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(TEX_ESCAPES.get(character, character) for character in visible(" ".join(text.split())))


def to_terminal(rows: Sequence[Row], *, width: int) -> "RichTable":
    """The table for the terminal, as `terminal_table`."""
    return terminal_table(columns(rows), width=width, ends=breaks(rows))


def agreements_to_terminal(comparison: Comparison, *, width: int) -> "RichTable":
    """The table of agreements for the terminal, as `terminal_table`."""
    lines = zip(*map(agreement_cells, comparison.agreements), strict=True)
    shown = [
        Column(head, list(of_head), of_text=number < 2, detail=head in ("rows", "right side of base", "seeds"))
        for number, (head, of_head) in enumerate(zip(HEADS, lines, strict=True))
    ]
    return terminal_table(shown, width=width)


def terminal_table(every: Sequence[Column], *, width: int, ends: Container[int] = ()) -> "RichTable":
    """Columns as a table; where `width` characters do not hold it, intervals go below, then what is detail goes.

    A line below it says how many columns are left out; behind each of the lines `ends` there is an empty one.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    every = [replace(column, name=re.sub("(?<!-) ", "\n", column.name)) for column in every]
    kept = [column for column in every if not column.detail]
    shown = next((some for some in (every, broken(every), kept) if fits(some, width)), broken(kept))
    left_out = len(every) - len(shown)
    said = f"columns left out: {left_out}; table.md has all of them" if left_out else None
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), caption=said)
    for column in shown:
        justify: Literal["left", "right"] = "left" if column.of_text else "right"
        table.add_column(Text(column.name), justify=justify, overflow="fold", no_wrap=not column.of_text)
    for number, line in enumerate(cells(shown), start=1):
        table.add_row(*map(Text, line), end_section=number in ends)
    return table


def broken(shown: Sequence[Column]) -> list[Column]:
    """Columns with each interval below its figure."""
    return [replace(column, cells=[cell.replace(" [", "\n[") for cell in column.cells]) for column in shown]


def fits(shown: Sequence[Column], width: int) -> bool:
    """Whether the terminal's table has room."""
    return sum(map(narrowest, shown)) + 2 * (len(shown) - 1) <= width


def narrowest(column: Column) -> int:
    """Characters that a column needs: text breaks between words, figures do not."""
    parts = (cell.split(None if column.of_text else "\n") for cell in (column.name, *column.cells))
    return max(map(len, chain(*parts)), default=0)
