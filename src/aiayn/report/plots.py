"""What the plots show, as plain points; and the plots as PNG files. The page draws the same points for the mouse."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from aiayn.files import write_bytes
from aiayn.report.agreement import Comparison
from aiayn.report.rows import SETTINGS, Row, base_of, differing, measured, name_of
from aiayn.report.table import (
    AS_IN_PAPER,
    has_paper,
    is_default_width,
    is_scaled,
    objective_of,
    setting,
    shown_settings,
)
from aiayn.runs.run import HELD_OUT

# Okabe and Ito 2008, which colour-blind readers can tell apart; then, for as many rows as Table 3 has, darker twins.
COLORS = [
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#b8a900"),
    *("#003f63", "#7a3600", "#005a42", "#7a4864", "#8a5f00", "#2b6a91", "#222222", "#6b6200"),
    *("#c2185b", "#7cb342", "#5e35b1", "#a08070"),
]
OURS, PAPER, GREY = COLORS[0], COLORS[1], "#888888"
NOISE = "; grey: the noise floor, base and its standard deviation over seeds"
# x, y, what it is called, and the bar of y: its standard deviation, unless the axis says what else.
Point = tuple[float, float, str, float | None]


@dataclass
class Line:
    """Points of one colour.

    Attributes:
        name: For the legend; lines of one name share a colour and an entry.
        points: From left to right.
        color: `#rrggbb`.
        connected: Whether a line goes through them.
        marked: Whether each has a marker.
        named: Whether each has its name beside it.
        banded: Whether deviations are a band about the line, and not bars.
    """

    name: str
    points: Sequence[Point]
    color: str
    connected: bool = True
    marked: bool = True
    named: bool = False
    banded: bool = False


@dataclass
class Panel:
    """One pair of axes.

    Attributes:
        x_label: Of the x axis.
        y_label: Of the other one.
        lines: What is drawn.
        logarithmic: Whether the x axis is.
        ticks: Of the x axis; empty: as they come.
        noise: The noise floor: from where to where base lies, its mean less and plus its deviation over seeds.
    """

    x_label: str
    y_label: str
    lines: list[Line]
    logarithmic: bool = False
    ticks: list[float] = field(default_factory=list)
    noise: tuple[float, float] | None = None


@dataclass
class Plot:
    """Panels in one picture.

    Attributes:
        name: Of its file.
        title: What it shows.
        panels: From left to right, a new line after every `across`.
        across: Panels beside each other.
    """

    name: str
    title: str
    panels: list[Panel]
    across: int = 1

    @property
    def heading(self) -> str:
        """The title, and what the grey band is where there is one."""
        return self.title + NOISE * any(panel.noise for panel in self.panels)


def plots(rows: Sequence[Row]) -> list[Plot]:
    """The plots for which the rows have something to show."""
    curves = [learning_curves(rows, key) for key in dict.fromkeys([objective_of(rows), "perplexity", HELD_OUT])]
    found = [marginals(rows), *curves, score_over_flops(rows)]
    return [plot for plot in found if plot.panels]


def noise_of(base: Row, key: str, origin: float = 0.0) -> tuple[float, float] | None:
    """The noise floor of a score, less an origin; None where base has not several seeds."""
    figure = base.figure(key)
    if figure is None or figure.deviation is None:
        return None
    return figure.mean - figure.deviation - origin, figure.mean + figure.deviation - origin


def marginals(rows: Sequence[Row]) -> Plot:
    """The objective and perplexity over each setting, of the rows that differ from base in that setting alone."""
    base = base_of(rows)
    axes: dict[str, list[Row]] = {}
    names = {"steps": "training steps"} if (keys := shown_settings(rows)) == SETTINGS else {}
    for name, key in keys.items():
        along = [row for row in rows if row is base or differ(row, base) == {key}]
        values = [row.told.get(key) for row in along]
        if len(along) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            axes[name] = sorted(along, key=lambda row: row.told[keys[name]])
    relative = has_paper(rows) and is_scaled(rows)  # twins share no scale with the paper's rows
    panels = []
    scores = dict.fromkeys([beside_paper(rows), ("perplexity", "perplexity", "perplexity")])
    for key, score, label in scores:
        zero = base.figure(key)
        origins = {"ours": zero.mean if zero and relative else 0.0, "paper": (relative and base.paper(score)) or 0.0}
        for name, along in axes.items():
            lines = []
            for whose, color in (("ours", OURS), ("paper", PAPER)):
                points: list[Point] = []
                for row in along:
                    x = float(row.told[keys[name]])
                    figure = row.figure(key) if whose == "ours" else None
                    paper = row.paper(score) if whose == "paper" else None
                    if figure is not None:
                        points.append((x, figure.mean - origins[whose], row.name, figure.deviation))
                    elif paper is not None:
                        points.append((x, paper - origins[whose], row.name, None))
                if points:
                    lines.append(Line(whose, points, color))
            ticks = [float(row.told[keys[name]]) for row in along]
            spread = min(ticks) > 0 and max(ticks) / min(ticks) >= 4
            panels.append(
                Panel(
                    names.get(name, name),
                    f"{label} - base" if relative else label,
                    lines,
                    logarithmic=spread,
                    ticks=ticks,
                    noise=noise_of(base, key, origins["ours"]),
                )
            )
    title = f"One setting at a time, all others as in {base.name}"
    return Plot("marginals", title, [panel for panel in panels if panel.lines], across=max(1, len(axes)))


def beside_paper(rows: Sequence[Row]) -> tuple[str, str, str]:
    """Keys of our objective and of the paper's, and a label: BLEU counted as the paper's where all rows have that."""
    key = objective_of(rows)
    scored = [row for row in rows if row.figure("bleu")]
    if key != "bleu" or not any(row.paper("bleu") for row in rows):
        return key, key, "perplexity" if key == "perplexity" else name_of(rows, key)
    if all(row.bleu_as_in_paper for row in scored):
        return "bleu_paper", "bleu", AS_IN_PAPER
    return "bleu", "bleu", "BLEU (ours: sacreBLEU)"


def differ(row: Row, base: Row) -> set[str]:
    """Keys of the settings in which a row is not like base; widths that follow from others do not count."""
    follow = {key for key in ("model.d_k", "model.d_v") if is_default_width(row, key) and is_default_width(base, key)}
    return {key for key in differing([row, base]) if key not in follow | {"name", "model.name", "data.name"}}


def learning_curves(rows: Sequence[Row], key: str) -> Plot:
    """A score on dev, or HELD_OUT, over optimizer steps: of each row the mean over its seeds, and their deviation."""
    lines = []
    for number, row in enumerate(rows):
        by_run = [run.validated(key) for run in row.runs]
        points: list[Point] = []
        for step in sorted(set[int]().union(*by_run)):
            values = [values[step] for values in by_run if math.isfinite(values.get(step, math.nan))]
            if values:
                deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
                points.append((float(step), float(np.mean(values)), row.name, deviation))
        if points:
            line = Line(row.name, points, COLORS[number % len(COLORS)], marked=len(points) == 1, banded=True)
            lines.append(line)
    name = name_of(rows, key)
    name = name if key == HELD_OUT else f"dev {name}"
    panels = [Panel("optimizer steps", f"{name}, nats a sentence" if key == HELD_OUT else name, lines)] if lines else []
    file = "learning_curves" if key == objective_of(rows) else f"{key}_curves"
    return Plot(file, f"{name[0].upper()}{name[1:]} in training, mean and standard deviation over seeds", panels)


def agreement_plots(comparison: Comparison) -> list[Plot]:
    """Ours over theirs, with the rows' names; and tau over the steps of training."""
    found, shown = comparison.agreements, []
    for one in found:
        if one.ours == one.theirs:
            points = [(float(x), float(y), name, None) for x, y, name in zip(one.x, one.y, one.names, strict=True)]
            turned = ", -ln" * (one.ours == "PPL")
            lines = [Line("rows", points, OURS, connected=False, named=True)]
            labels = f"{one.theirs} of {comparison.theirs}{turned}", f"our {one.ours}{turned}"
            panel = Panel(*labels, lines, noise=one.noise)
            title = f"{one.ours} beside that of {comparison.theirs}: where the orders agree, the points rise"
            shown.append(Plot(f"agreement_{re.sub('[^a-z]+', '_', one.ours.lower())}", title, [panel]))
    lines = [
        Line(f"{one.ours} with {one.theirs}", [(float(step), tau, "", None) for step, tau in one.curve], color)
        for one, color in zip(found, COLORS, strict=False)
        if len(one.curve) > 1
    ]
    if lines:
        panel = Panel("optimizer steps", "tau-b", lines)
        shown.append(
            Plot("agreement_over_steps", f"How early the order in training agrees with {comparison.theirs}", [panel])
        )
    return shown


def score_over_flops(rows: Sequence[Row]) -> Plot:
    """The objective over the FLOPs of training, of matrix products; the paper's where it has both (Table 2).

    Smaller twins cost and score something else, so the paper's points are not beside theirs.
    """
    lines = []
    key, reported, label = beside_paper(rows)
    if is_scaled(rows):
        key, label = reported, name_of(rows, reported)
    for number, row in enumerate(rows):
        flops, ours = row.figure("flops"), row.figure(key)
        if flops and ours and flops.mean > 0:
            point = (flops.mean, ours.mean, row.name, ours.deviation)
            lines.append(Line(row.name, [point], COLORS[number % len(COLORS)], connected=False))
    papers: list[Point] = []
    for row in rows:
        theirs, score = row.paper("counted_flops"), row.paper(reported)
        if theirs and score:
            papers.append((theirs, score, row.name, None))
    if papers and lines and not is_scaled(rows):
        lines.append(Line("paper", papers, GREY, connected=False))
    splits = {measured(run, row)[1] for row in rows for run in row.done}
    label += f", {splits.pop()}" if len(splits) == 1 else ""
    noise = noise_of(base_of(rows), key)
    x_label = "training FLOPs of the matrix products"
    panels = [Panel(x_label, label, lines, logarithmic=True, noise=noise)] if lines else []
    return Plot("score_over_flops", "What a row's training costs, and what it scores", panels)


def draw(plot: Plot, path: Path) -> None:
    """Write a plot as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, since it takes half a second to import
    from matplotlib.figure import Figure

    down = -(-len(plot.panels) // plot.across)
    size = (2.6 * plot.across, 2.5 * down) if len(plot.panels) > 1 else (9, 5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(verbatim(plot.heading), fontsize=11)
    labels: dict[str, Any] = {}
    for number, panel in enumerate(plot.panels, start=1):
        axes = figure.add_subplot(down, plot.across, number)
        for line in panel.lines:
            x, y, _, deviations = zip(*line.points, strict=True)
            if line.banded and any(deviations):
                spread = [deviation or 0 for deviation in deviations]
                low, high = np.subtract(y, spread), np.add(y, spread)
                axes.fill_between(x, low, high, color=line.color, alpha=0.15, linewidth=0)
                deviations = ()
            if line.named:
                for place in line.points:
                    axes.annotate(verbatim(place[2]), place[:2], fontsize=6, xytext=(3, 2), textcoords="offset points")
            labels[verbatim(line.name)] = axes.errorbar(
                x,
                y,
                yerr=[deviation or 0 for deviation in deviations] if any(deviations) else None,
                color=line.color,
                linestyle="-" if line.connected else "",
                linewidth=1.2,
                marker="o" if line.marked else "",
                markersize=4,
                capsize=2,
            )
        if panel.noise:
            axes.axhspan(*panel.noise, color=GREY, alpha=0.2, linewidth=0, zorder=0)
        if panel.logarithmic:
            axes.set_xscale("log")
        if panel.ticks:
            axes.set_xticks(panel.ticks, [setting(tidy(tick)) for tick in panel.ticks], fontsize=8)
            axes.minorticks_off()
        axes.set_xlabel(verbatim(panel.x_label), fontsize=9)
        axes.set_ylabel(panel.y_label, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = list(labels.values()), list(labels)
    if len(names) > 1:
        figure.legend(handles, names, loc="outside right center", fontsize=8, frameon=False)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_bytes(path, drawn.getvalue())


def tidy(value: float) -> float | int:
    """Whole numbers without a point."""
    return int(value) if value == int(value) else value


def verbatim(text: str) -> str:
    """Text that matplotlib does not take for mathematics, nor for a label to hide."""
    return text.replace("$", r"\$").lstrip("_") or "-"
