"""The page and the plots: what they show, in a real browser where there is one."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from browser import shown
from fake_runs import config, write_run
from matplotlib.figure import Figure

from aiayn.report.agreement import Comparison, agreements, of_paper
from aiayn.report.distance import bootstrap
from aiayn.report.notes import notes
from aiayn.report.page import page
from aiayn.report.plots import agreement_plots, draw, plots
from aiayn.report.rows import Row, rows_of
from aiayn.runs.run import read_folder

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">$\\nosuch$"

NOTHING = Comparison([], "")


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Rows over heads and dropout, one with an evil name and two seeds."""
    for number, (heads, dropout) in enumerate([(8, 0.1), (1, 0.1), (4, 0.1), (8, 0.0)]):
        quality = (0.5, 0.56, 0.53, 0.6)[number]
        name = "base" if not number else f"row{number}"
        paper = {"bleu": 25.0 + number, "flops": 4e18 * (number + 1), "counted_flops": 1e18 * (number + 1)}
        made = config(name, paper=paper, model__heads=heads)
        made["model"]["dropout"] = dropout
        write_run(tmp_path / "runs" / name, made, quality=quality, command=["run.py", EVIL])
        write_run(tmp_path / "runs" / f"{name}2", made | {"seed": 2}, quality=quality)
    found = rows_of(read_folder(tmp_path / "runs"))
    bootstrap(found)
    found[3].name = EVIL
    return found


def test_marginals_show_the_rows_that_differ_from_base_in_one_setting(rows: list[Row]) -> None:
    marginals, curves, _, flops = plots(rows)
    assert [panel.x_label for panel in marginals.panels] == ["h", "P_drop"] * 2
    assert [panel.y_label for panel in marginals.panels] == ["BLEU as in paper"] * 2 + ["perplexity"] * 2
    ours, paper = marginals.panels[0].lines
    assert [point[0] for point in ours.points] == [point[0] for point in paper.points] == [1, 4, 8]
    assert [point[1] for point in paper.points] == [26, 27, 25]
    figure = rows[0].figure("bleu_paper")
    assert figure is not None
    assert ours.points[-1] == (8, figure.mean, "base", figure.deviation)
    assert len(curves.panels[0].lines) == 4
    assert [line.name for line in flops.panels[0].lines] == ["base", "row1", "row2", EVIL, "paper"]
    assert flops.panels[0].y_label == "BLEU as in paper, dev"
    assert flops.panels[0].lines[0].points[0][1] == figure.mean
    assert [point[:2] for point in flops.panels[0].lines[-1].points] == [(1e18, 25), (2e18, 26), (3e18, 27), (4e18, 28)]


def test_plots_say_where_our_bleu_is_not_counted_as_the_papers(tmp_path: Path) -> None:
    for heads in (8, 4):
        made = config(f"x{heads}", paper={"bleu": 27.3, "counted_flops": 1e18}, model__heads=heads)
        write_run(tmp_path / str(heads), made, as_in_paper=heads == 8)
    marginals, _, _, flops = plots(rows_of(read_folder(tmp_path)))
    assert marginals.panels[0].y_label == "BLEU (ours: sacreBLEU)"
    assert flops.panels[0].y_label == "BLEU (ours: sacreBLEU), dev"


def test_smaller_twins_are_plotted_as_distances_from_base(rows: list[Row]) -> None:
    for row in rows:
        row.runs[0].config["scale"] = {"name": "tiny"}
    marginals, _, _, flops = plots(rows)
    panel = marginals.panels[0]
    assert panel.y_label == "BLEU as in paper - base"
    assert [line.points[-1][1] for line in panel.lines] == [0, 0]
    assert "paper" not in [line.name for line in flops.panels[0].lines]


def test_the_noise_floor_is_where_base_lies_over_its_seeds(rows: list[Row], tmp_path: Path) -> None:
    base = rows[0].figure("bleu_paper")
    assert base is not None
    assert base.deviation
    floor = base.mean - base.deviation, base.mean + base.deviation
    comparison = Comparison(agreements(rows, of_paper(rows), min_difference={}), "the paper")
    marginals, curves, _, flops = plots(rows)
    scatter = agreement_plots(comparison)[0]
    bleu = rows[0].figure("bleu")
    assert marginals.panels[0].noise == flops.panels[0].noise == floor
    assert scatter.panels[0].noise == pytest.approx((bleu.mean - bleu.deviation, bleu.mean + bleu.deviation))  # type: ignore
    assert curves.panels[0].lines[0].banded  # there it is the band of base itself
    for plot in (marginals, flops, scatter):
        assert plot.heading.endswith("; grey: the noise floor, base and its standard deviation over seeds")
        draw(plot, tmp_path / "drawn.png")
    html = page("rows", rows, [], [], NOTHING, [flops])
    assert f'"y0": {floor[0]}, "y1": {floor[1]}' in html
    del rows[0].runs[1:]
    vars(rows[0]).pop("done")
    assert plots(rows)[-1].panels[0].noise is None
    assert "grey" not in plots(rows)[-1].heading


def test_a_split_is_named_where_all_rows_have_it(tmp_path: Path) -> None:
    for name, split in (("a", "dev"), ("b", "test")):
        write_run(tmp_path / name, config(name) | {"report": {"split": split}}, split=split)
    found = rows_of(read_folder(tmp_path))
    assert plots(found)[-1].panels[0].y_label == "BLEU"
    assert plots(found[:1])[-1].panels[0].y_label == "BLEU, dev"


def test_rows_without_results_have_no_plots(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", config("x"), status="failed")
    shutil.rmtree(folder / "metrics")
    assert plots(rows_of(read_folder(tmp_path))) == []


def test_plots_are_drawn_whatever_the_names(rows: list[Row], tmp_path: Path) -> None:
    for plot in plots(rows):
        draw(plot, tmp_path / f"{plot.name}.png")
        assert (tmp_path / f"{plot.name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_drawn_leaves_the_old_one(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(figure: Figure, place: Any, **options: Any) -> None:
        (place.write if hasattr(place, "write") else place.write_bytes)(b"half")
        raise OSError("no space")

    (tmp_path / "x.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space"):
        draw(plots(rows)[0], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == b"old"


def test_text_of_the_page_is_escaped(rows: list[Row]) -> None:
    rows[2].told["training.max_steps"] = EVIL  # a figure, for all the page knows
    html = page(EVIL, rows, notes(rows, EVIL), [], NOTHING, plots(rows))
    assert EVIL not in html
    assert html.count("</script>") == 3
    assert unescape(re.search("<title>(.*?)</title>", html)[1]) == EVIL  # type: ignore[index]
    found = re.search('<script type="application/json" id="plots">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    assert len(json.loads(found[1])) == 7


def test_rows_have_their_folders_as_tooltips_and_commands_a_line(rows: list[Row]) -> None:
    html = page("rows", rows, [], [], NOTHING, [])
    assert '<tr title="base\nbase2"><td class="text">base</td>' in html
    assert html.count('<td class="text cut" tabindex="0" title="python run.py ') == 8
    rows[0].runs[0].row = EVIL
    assert EVIL not in page("rows", rows, [], [], NOTHING, [])


@pytest.mark.slow
def test_a_browser_draws_the_figures_without_the_network(rows: list[Row], chromium: str, tmp_path: Path) -> None:
    file = tmp_path / "index.html"
    drawn = plots(rows)
    lines = sum(1 + line.banded for plot in drawn for panel in plot.panels for line in panel.lines)
    file.write_text(page("rows", rows, notes(rows, EVIL), [], NOTHING, drawn), encoding="utf-8")
    # Sorted by BLEU at the end, so that the order of the rows shows that a click works.
    click = "<script>[...document.querySelectorAll('th button')].find((b) => b.textContent === 'BLEU').click()"
    file.write_text(file.read_text(encoding="utf-8").replace("</body>", f"{click}</script></body>"), encoding="utf-8")
    html = shown(chromium, file, milliseconds=20_000)
    assert "<title>rows</title>" in html
    assert html.count('class="main-svg"') >= 6  # each figure has some
    assert html.count('class="trace scatter') == lines
    body = re.search(r"<tbody.*?</tbody>", html, re.DOTALL)
    assert body is not None
    assert re.findall(r">(base|row\d)<", body[0]) == ["base", "row2", "row1"]
