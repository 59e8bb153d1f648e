"""The report as one HTML file that opens offline: the table, what is to know about it, claims, plots, and every run.

Names, commands and messages come from run folders, which anyone may have written: all text is escaped.
"""

import json
import shlex
from collections.abc import Container, Sequence
from html import escape
from string import Template
from typing import Any

from aiayn.report.agreement import AGREEMENT, HEADS, Comparison
from aiayn.report.agreement import cells as agreement_cells
from aiayn.report.claims import FAILS, HOLDS, Verdict
from aiayn.report.plots import GREY, Line, Panel, Plot, tidy
from aiayn.report.rows import Row, devices, digits_of, measured, name_of
from aiayn.report.table import (
    VERDICT_HEADS,
    Notes,
    Section,
    breaks,
    cells,
    columns,
    objective_of,
    others,
    setting,
    verdict_cells,
    verdict_note,
)
from aiayn.runs.run import Run

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
body { margin: 0 auto; max-width: 100rem; padding: 1rem; font: 15px/1.5 system-ui, sans-serif; color: #222; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; padding: .4rem 0; color: #666; }
th, td { padding: .2rem .45rem; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #222; vertical-align: bottom; white-space: normal; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort=ascending] button::after { content: " \\25b4"; }
th[aria-sort=descending] button::after { content: " \\25be"; }
.text { text-align: left; }
.long { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.cut { max-width: 24rem; overflow: hidden; text-overflow: ellipsis; }
.cut:focus { min-width: 24rem; white-space: normal; overflow-wrap: anywhere; }
tbody tr.group td { border-top: 1px solid #bbb; }
tbody tr:hover { background: #eef4f9; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(11.5rem, 1fr)); }
.holds { color: #00694b; font-weight: 600; }
.fails { color: #a84300; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt { color: #666; }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px/1.4 ui-monospace, monospace; }
@media (max-width: 40rem) {
 body { font-size: 14px; padding: .6rem; }
 dl { display: block; }
 dd { margin-bottom: .4rem; }
}
</style>
</head>
<body>
<h1>$title</h1>
$body
<script>$plotly</script>
<script type="application/json" id="plots">$plots</script>
<script>
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], original = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort || "none"];
    for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
    head.ariaSort = next;
    const value = (row) => row.cells[column].textContent;
    const number = (text) => {
      const found = parseFloat(text.replace("\\u2212", "-").replace(",", ""));
      return /^\\d+K$$/.test(text) ? found * 1000 : found;
    };
    const words = head.classList.contains("text");
    const compare = (a, b) => words ? a.localeCompare(b, "en", { numeric: true }) : number(a) - number(b);
    const [empty, filled] = [true, false].map((none) => original.filter((row) => (value(row).trim() === "") === none));
    if (next !== "none") filled.sort((a, b) => compare(value(a), value(b)) * (next === "ascending" ? 1 : -1));
    body.classList.toggle("sorted", next !== "none");
    body.append(...(next === "none" ? original : [...filled, ...empty]));
  }));
}
const narrow = window.matchMedia("(max-width: 40rem)").matches;
for (const plot of JSON.parse(document.getElementById("plots").textContent)) {
  if (narrow) Object.assign(plot.layout.legend, { orientation: "h", x: 0, xanchor: "left", y: -0.2 });
  Plotly.newPlot(plot.id, plot.data, plot.layout, { responsive: true, displaylogo: false, displayModeBar: plot.bar });
}
</script>
</body>
</html>
""")


def page(
    title: str,
    rows: Sequence[Row],
    notes: Notes,
    verdicts: Sequence[Verdict],
    comparison: Comparison,
    plots: Sequence[Plot],
    sections: Sequence[Section] = (),
) -> str:
    """The whole page; it needs no other file and no network."""
    from plotly.offline import get_plotlyjs  # here, since only a report needs it

    shown, groups = columns(rows), breaks(rows)
    parts = [
        html_table(
            [column.name for column in shown],
            cells(shown),
            text={number for number, column in enumerate(shown) if column.of_text},
            groups=groups,
            tips=[*("\n".join(run.row for run in row.runs) for row in rows), *[""] * len(others(rows))],
            caption="Click a head to sort; files beside this page: table.csv, table.md, table.tex.",
        ),
        f"<dl>{''.join(f'<dt>{escape(label)}</dt><dd>{escape(text)}</dd>' for label, text in notes)}</dl>",
    ]
    if verdicts:
        parts.append("<h2>Claims, and what these runs say</h2>")
        parts.append(
            html_table(
                VERDICT_HEADS,
                [verdict_cells(verdict) for verdict in verdicts],
                text={0, 4},
                long={0, 4},
                caption=verdict_note(verdicts),
            )
        )
    if comparison.agreements:
        parts.append(f"<h2>How far to believe the order of these rows</h2><p>{escape(comparison.reading)}</p>")
        lines = [agreement_cells(agreement) for agreement in comparison.agreements]
        parts.append(html_table(HEADS, lines, text={0, 1}, caption=AGREEMENT))
    for section in sections:
        heads, text = [column.name for column in section.columns], [column.of_text for column in section.columns]
        parts.append(f"<h2>{escape(section.title)}</h2>")
        of_text = {number for number, is_text in enumerate(text) if is_text}
        parts.append(html_table(heads, cells(section.columns), text=of_text, caption=section.note))
    parts += [f"<h2>{escape(plot.heading)}</h2>{html_plot(plot)}" for plot in plots]
    parts.append("<h2>Runs</h2>")
    objective = objective_of(rows)
    heads = [
        "row",
        "seed",
        "state",
        "steps",
        "PPL",
        *([name_of(rows, objective)] if objective != "perplexity" else []),
        "FLOPs",
        "seconds",
        "devices",
        "commit",
        "command, or error",
    ]
    runs = [(row, run) for row in rows for run in row.runs]
    parts.append(
        html_table(
            heads,
            [run_cells(row, run, [*dict.fromkeys(["perplexity", objective])]) for row, run in runs],
            text={0, 2, *range(len(heads) - 3, len(heads))},
            cut={len(heads) - 1},
            tips=[run.row for _, run in runs],
            caption="A row's tooltip is the name of its folder; click a command to see all of it.",
        )
    )
    figures = json.dumps([panel for plot in plots for panel in interactive(plot)])
    return PAGE.substitute(
        title=escape(title),
        body="\n".join(parts),
        plotly=get_plotlyjs(),
        plots=figures.replace("<", "\\u003c"),  # nothing in it can end the script
    )


def html_table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    text: Container[int],
    long: Container[int] = (),
    cut: Container[int] = (),
    groups: Container[int] = (),
    tips: Sequence[str] = (),
    caption: str = "",
) -> str:
    """A table that can be sorted.

    Args:
        heads: Of the columns.
        lines: Their cells by row.
        text: Columns, by number, that hold text and not figures.
        long: Columns whose text may break.
        cut: Columns whose text is cut to one line until it is clicked.
        groups: Rows, by number, before which a group begins.
        tips: Tooltips of the rows.
        caption: Below it.
    """
    classes = {"text": text, "long": long, "cut": cut}
    kinds = [" ".join(name for name, those in classes.items() if number in those) for number in range(len(heads))]

    def cell(kind: str, content: str) -> str:
        verdict = "holds" if content.startswith(HOLDS) else "fails" if content.startswith(FAILS) else ""
        shown = f' class="{classes}"' if (classes := f"{kind} {verdict}".strip()) else ""
        whole = f' tabindex="0" title="{escape(content)}"' if "cut" in kind else ""
        return f"<td{shown}{whole}>{escape(content)}</td>"

    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(heads, kinds, strict=True)
    )
    marks = [" class=group" if number in groups else "" for number in range(len(lines))]
    marks = [f'{mark} title="{escape(tip)}"' for mark, tip in zip(marks, tips, strict=True)] if tips else marks
    body = "\n".join(
        f"<tr{mark}>{''.join(map(cell, kinds, line))}</tr>" for mark, line in zip(marks, lines, strict=True)
    )
    below = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide"><table class="sortable">{below}<thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def run_cells(row: Row, run: Run, scores: Sequence[str]) -> list[str]:
    """A run's line in the list of all runs, with these of its scores."""
    result, place = run.result, measured(run, row)

    def number(value: Any, form: str) -> str:
        return format(value, form) if isinstance(value, int | float) else ""

    state = run.state
    command = " ".join(["python", *map(shlex.quote, map(str, result.get("command") or []))]) if result else ""
    return [
        row.name,
        str(run.config.get("seed", "")),
        state,
        number(result.get("steps"), ""),
        *(number(run.score(*place, key), f".{digits_of([row.figure(key)])}f") for key in scores),
        number(result.get("flops"), ".2e"),
        number(result.get("training_seconds"), ".0f"),
        devices(run),
        str(result.get("git_commit") or "")[:10],
        (run.error if state == "failed" else "") or command,
    ]


def html_plot(plot: Plot) -> str:
    """Where the script draws a plot; beside several panels their colours are named once, for all."""
    if len(plot.panels) == 1:
        return f'<div id="{plot.name}-0"></div>'
    colors = {line.name: line.color for panel in plot.panels for line in panel.lines}
    key = " ".join(f'<span style="color:{color}">&#9679;</span> {escape(name)}' for name, color in colors.items())
    return f'<p>{key}</p><div class="panels">{panel_places(plot)}</div>'


def panel_places(plot: Plot) -> str:
    """A place for each panel."""
    return "".join(f'<div id="{plot.name}-{number}"></div>' for number in range(len(plot.panels)))


def interactive(plot: Plot) -> list[dict[str, Any]]:
    """A plot's panels as plotly.js draws them."""
    alone = len(plot.panels) == 1
    drawn = []
    for number, panel in enumerate(plot.panels):
        named: set[str] = set()
        data = []
        for line in panel.lines:
            if line.banded and any(point[3] for point in line.points):
                data.append(band(line))
            data.append(trace(line, legend=alone and line.name not in named))
            named.add(line.name)
        layout: dict[str, Any] = {
            "height": 480 if alone else 240,
            "margin": {"l": 50, "r": 10, "t": 25, "b": 40},
            "hovermode": "closest",
            "legend": {"itemsizing": "constant"},
            "font": {"family": "system-ui, sans-serif", "size": 12},
            "xaxis": x_axis(panel),
            "yaxis": axis_of(panel.y_label),
        }
        if panel.noise:
            low, high = panel.noise
            place = {"xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below"}
            layout["shapes"] = [{"type": "rect", **place, "fillcolor": f"{GREY}33", "line": {"width": 0}}]
        drawn.append({"id": f"{plot.name}-{number}", "data": data, "layout": layout, "bar": alone})
    return drawn


def trace(line: Line, *, legend: bool) -> dict[str, Any]:
    """A line as plotly.js draws it."""
    x, y, names, deviations = zip(*line.points, strict=True)
    made: dict[str, Any] = {
        "type": "scatter",
        "mode": "+".join(["lines"] * line.connected + ["markers"] * line.marked + ["text"] * line.named),
        "x": x,
        "y": y,
        "text": [verbatim(name) for name in names],
        "hoverinfo": "text+x+y",
        "name": verbatim(line.name),
        "legendgroup": line.name,
        "showlegend": legend,
        "line": {"color": line.color, "width": 1.5},
        "marker": {"color": line.color, "size": 7},
    }
    if line.named:
        made |= {"textposition": "top right", "textfont": {"size": 9}}
    if any(deviations) and not line.banded:
        made["error_y"] = {"type": "data", "array": [deviation or 0 for deviation in deviations], "thickness": 1}
    return made


def band(line: Line) -> dict[str, Any]:
    """The deviations of a line as an area about it."""
    upper = [(x, y + (deviation or 0)) for x, y, _, deviation in line.points]
    lower = [(x, y - (deviation or 0)) for x, y, _, deviation in line.points]
    x, y = zip(*upper, *reversed(lower), strict=True)
    area = {"fill": "toself", "fillcolor": f"{line.color}26", "mode": "none", "hoverinfo": "skip"}
    return {"type": "scatter", "x": x, "y": y, "legendgroup": line.name, "showlegend": False, **area}


def verbatim(text: str) -> str:
    """Text that plotly.js takes neither for markup nor for mathematics."""
    return escape(text).replace("$", "&#36;")


def axis_of(label: str) -> dict[str, Any]:
    """An axis with its label."""
    return {
        "title": {"text": verbatim(label), "standoff": 5},
        "gridcolor": "#e6e6e6",
        "zeroline": False,
        "automargin": True,
    }


def x_axis(panel: Panel) -> dict[str, Any]:
    """A panel's x axis, with marks at its own values where it has few."""
    axis = axis_of(panel.x_label)
    if panel.logarithmic:
        axis["type"] = "log"
    if panel.ticks:
        axis |= {"tickvals": panel.ticks, "ticktext": [setting(tidy(tick)) for tick in panel.ticks]}
    return axis
