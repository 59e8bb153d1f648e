"""Attention as PNG files: weights as lines between words, as in figures 3 to 5 of the paper, or as heat maps, a panel a
head; and the figures of all heads of a model.

A head has the same colour in attention.js, and the same weights are left out there.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from aiayn.files import write_bytes

# Okabe and Ito 2008, as many as the base model has heads; larger models repeat them.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#b8a900")
VIEWS = ("lines", "maps")
ACROSS = 4  # panels beside each other
LEAST = 0.04  # what is fainter cannot be seen
FONT = 9  # points
LETTER = 0.085  # inches: what a letter takes at most, on average
ROW, CELL, GAP, MARGIN = 0.19, 0.17, 1.6, 0.12  # inches: a line of text, a heat map's cell, the room for lines


def draw(
    path: Path,
    weights: np.ndarray,
    *,
    query: Sequence[str],
    key: Sequence[str],
    heads: Sequence[int],
    title: str,
    view: str,
) -> None:
    """Write one layer's attention.

    Args:
        path: Of the PNG.
        weights: `(heads, query, key)`, of all heads.
        query: Tokens; they stand on the left and attend to those on the right, or above the columns.
        key: Tokens that are attended to.
        heads: Which heads to draw, counted from 0.
        title: Above all panels.
        view: "lines" or "maps".
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, since it takes half a second to import
    from matplotlib.figure import Figure

    left, other = (LETTER * max(map(len, tokens)) + MARGIN for tokens in (query, key))
    if view == "lines":
        right, above = other, 0.3
        inner = (GAP, ROW * max(len(query), len(key)))
    else:
        right, above = MARGIN, 0.3 + other
        inner = (CELL * len(key), CELL * len(query))
    across, down = min(ACROSS, len(heads)), -(-len(heads) // ACROSS)
    panel = (left + inner[0] + right, above + inner[1] + MARGIN)
    width, height = max(across * panel[0], 1.1 * LETTER * len(title) + 2 * MARGIN), down * panel[1] + 0.35
    figure = Figure(figsize=(width, height), dpi=110)
    FigureCanvasAgg(figure)
    figure.text(MARGIN / width, 1 - 0.2 / height, title, fontsize=FONT + 2, va="center", parse_math=False)
    for place, head in enumerate(heads):
        line, column = divmod(place, ACROSS)
        bottom = height - 0.35 - (line + 1) * panel[1] + MARGIN
        box = ((column * panel[0] + left) / width, bottom / height, inner[0] / width, inner[1] / height)
        axes = figure.add_axes(box)
        color = COLORS[head % len(COLORS)]
        (_lines if view == "lines" else _map)(axes, weights[head], query, key, color)
        name_at = (column * panel[0] + MARGIN) / width, (bottom + inner[1] + above - 0.15) / height
        figure.text(*name_at, f"head {head + 1}", fontsize=FONT, color=color, weight="bold", va="center")
    _write(path, figure)


def draw_heads(path: Path, figures: Mapping[str, tuple[np.ndarray, np.ndarray]], *, kinds: Sequence[str]) -> None:
    """Write heat maps of what was measured of each head: a panel for each figure and kind, layers upwards.

    Args:
        path: Of the PNG.
        figures: By name: its values, and how each is written, both `(kinds, layers, heads)`; NaN where
            there is no such layer.
        kinds: What the kinds of attention are called.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, since it takes half a second to import
    from matplotlib.figure import Figure

    _, layers, heads = next(iter(figures.values()))[0].shape
    size = (3 + 0.45 * heads * len(kinds), (1 + 0.32 * layers) * len(figures))
    figure = Figure(figsize=size, dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(figures), len(kinds), squeeze=False)
    for (name, (values, written)), row in zip(figures.items(), panels, strict=True):
        for kind, axes in enumerate(row):
            span = {"vmin": np.nanmin(values), "vmax": np.nanmax(values)}
            image = axes.imshow(values[kind], origin="lower", aspect="auto", **span)
            axes.set_xticks(range(heads), range(1, heads + 1), fontsize=7)
            axes.set_yticks(range(layers), range(1, layers + 1), fontsize=7)
            axes.set_title(f"{kinds[kind]}: {name}", fontsize=8)
            for (layer, head), value in np.ndenumerate(values[kind]):
                if np.isnan(value):
                    continue
                color = "black" if image.norm(value) > 0.5 else "white"  # the map is bright where values are large
                text = written[kind, layer, head]
                axes.text(head, layer, text, ha="center", va="center", fontsize=6, color=color)
        figure.colorbar(image, ax=row, fraction=0.04, pad=0.01).ax.tick_params(labelsize=7)
        row[0].set_ylabel("layer", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("head", fontsize=8)
    _write(path, figure)


def _write(path: Path, figure: Any) -> None:
    """Write a matplotlib figure, drawn in memory first, so that no half of it is ever in its place."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    write_bytes(path, drawn.getvalue())


def _lines(axes: Any, weights: np.ndarray, query: Sequence[str], key: Sequence[str], color: str) -> None:
    """A line from each query to each key, as opaque as its weight."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    ends = np.argwhere(weights >= LEAST)
    colors = [to_rgba(color, weight) for weight in weights[tuple(ends.T)]]
    axes.add_collection(LineCollection([((0, on), (1, at)) for on, at in ends], colors=colors))
    axes.set(xlim=(-0.04, 1.04), ylim=(max(len(query), len(key)) - 0.5, -0.5))
    axes.axis("off")
    for x, side, tokens in ((-0.06, "right", query), (1.06, "left", key)):
        for y, token in enumerate(tokens):
            axes.text(x, y, token, ha=side, va="center", fontsize=FONT, parse_math=False)


def _map(axes: Any, weights: np.ndarray, query: Sequence[str], key: Sequence[str], color: str) -> None:
    """A row for each query, a column for each key; white is 0, the head's colour is 1."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("head", ["white", color])
    axes.imshow(weights, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(query)), query, fontsize=FONT - 1, parse_math=False)
    axes.set_xticks(range(len(key)), key, fontsize=FONT - 1, rotation=90, parse_math=False)
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_color("#bbbbbb")
