"""PNG files of attention weights."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from aiayn.analysis.figures import COLORS, VIEWS, draw, draw_heads

QUERY = ["<s>", "Ein", "$\\nosuch$", "Haus", "\u00b7chen"]
KEY = ["A", "small", "house"]
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(3), size=(11, 5))  # (heads, query, key)


@pytest.fixture
def figure(monkeypatch, tmp_path):
    """Draw, and give the figure as well as its file."""
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **options: (drawn.append(self), save(self, *args, **options))
    )

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


def test_each_head_has_its_figure_in_the_panel_of_its_kind(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: drawn.append(self))
    values = np.arange(2 * 3 * 5).reshape(2, 3, 5)  # (kinds, layers, heads)
    written = np.vectorize("{:d}*".format)(values)
    draw_heads(tmp_path / "x.png", {"one": (values, written), "two": (-values, written)}, kinds=["a", "b"])
    panels = [axes for axes in drawn[0].axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["a: one", "b: one", "a: two", "b: two"]
    for axes, expected in zip(panels, [*values, *-values], strict=True):
        assert (axes.images[0].get_array() == expected).all()
        places = {text.get_position(): text.get_text() for text in axes.texts}
        assert places == {(head, layer): f"{abs(value)}*" for (layer, head), value in np.ndenumerate(expected)}


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(monkeypatch, tmp_path):
    def half(figure, place, **options):
        (place.write if hasattr(place, "write") else place.write_bytes)(b"half")
        raise OSError("no space")

    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space"):
        draw(path, WEIGHTS, query=QUERY, key=KEY, heads=[1], title="x", view="maps")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
