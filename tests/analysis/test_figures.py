"""PNG files of attention weights."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from aiayn.analysis.figures import COLORS, VIEWS, draw

QUERY = ["<s>", "Ein", "$\\nosuch$", "Haus", "\u00b7chen"]
KEY = ["A", "small", "house"]
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(3), size=(11, 5))  # (heads, query, key)


@pytest.fixture
def figure(monkeypatch, tmp_path):
    """Draw, and give the figure as well as its file."""
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args: (drawn.append(self), save(self, *args)))

    def draw_one(view, heads, weights=WEIGHTS):
        draw(tmp_path / "x.png", weights, query=QUERY, key=KEY, heads=heads, title="layer 2 of 3", view=view)
        return drawn.pop(), imread(tmp_path / "x.png")

    return draw_one


@pytest.mark.parametrize("view", VIEWS)
def test_every_token_and_head_is_named_within_the_picture(figure, view):
    made, picture = figure(view, [10, 0, 3, 4, 5])
    assert picture.shape[:2] == tuple(made.canvas.get_width_height()[::-1])
    assert [text.get_text() for text in made.texts] == [
        "layer 2 of 3",
        "head 11",
        "head 1",
        "head 4",
        "head 5",
        "head 6",
    ]
    assert len(made.axes) == 5
    for axes in made.axes:
        labels = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
        shown = [label for label in labels if label.get_visible() and label.get_text() in {*QUERY, *KEY}]
        assert sorted(label.get_text() for label in shown) == sorted([*QUERY, *KEY])
        boxes = [label.get_window_extent() for label in [*shown, *made.texts]]
        assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
        assert all(box.x1 <= picture.shape[1] and box.y1 <= picture.shape[0] for box in boxes)


def test_a_line_is_as_opaque_as_its_weight(figure):
    weights = np.zeros((2, 5, 3))
    weights[1, 4, 0], weights[1, 4, 2], weights[1, 3, 1] = 0.25, 0.75, 1
    made, _ = figure("lines", [1], weights)
    [lines] = made.axes[0].collections
    assert [tuple(map(tuple, ends)) for ends in lines.get_segments()] == [
        ((0, 3), (1, 1)),
        ((0, 4), (1, 0)),
        ((0, 4), (1, 2)),
    ]
    assert lines.get_colors()[:, 3].tolist() == [1, 0.25, 0.75]


def test_a_map_is_white_where_nothing_is_attended_to(figure):
    weights = np.zeros((2, 5, 3))
    weights[1, 4, 0] = 1
    made, picture = figure("maps", [1], weights)
    [image] = made.axes[0].images
    assert (image.get_array() == weights[1]).all()
    box = made.axes[0].get_window_extent()
    cell = box.width / 3
    bottom_left, bottom_right = (
        picture[int(picture.shape[0] - box.y0 - cell / 2), int(box.x0 + cell * at), :3] for at in (0.5, 2.5)
    )
    color = [int(COLORS[1][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    np.testing.assert_allclose(bottom_left, color, atol=0.01)
    np.testing.assert_allclose(bottom_right, 1)
