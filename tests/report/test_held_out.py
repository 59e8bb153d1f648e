"""The log-likelihood of all held-out sentences, as a score of rows."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from fake_runs import config, sentences, write_run

from aiayn.report.agreement import agreements, cells, of_paper
from aiayn.report.distance import bootstrap
from aiayn.report.formats import to_csv
from aiayn.report.notes import notes
from aiayn.report.plots import plots
from aiayn.report.rows import Row, rows_of
from aiayn.report.table import columns
from aiayn.runs.run import HELD_OUT, read_folder

TEST = 311  # sentences, beside the 200 of dev


def made(folder: Path, *, rows: int = 5, seeds: int = 2, test: int = TEST) -> list[Row]:
    """Rows whose likelihoods fall as the paper's BLEU does."""
    for place in range(rows):
        for seed in range(1, seeds + 1):
            of_run = config(f"row_{place}", seed=seed, paper={"bleu": 26.0 - place}, model__d_ff=2048 + place)
            write_run(folder / f"row_{place}_{seed}", of_run, nats=1.5 + 0.1 * place + 0.01 * seed, test=test)
    return read(folder)


def read(folder: Path) -> list[Row]:
    found = rows_of(read_folder(folder))
    bootstrap(found)
    return found


def test_it_is_the_mean_over_the_sentences_of_all_sets(tmp_path: Path) -> None:
    row, other = made(tmp_path, rows=2)
    dev = sentences(0.6, nats=1.51, seed=1 + 100 * sum(map(ord, "row_0")))["perplexity"][:, 0]
    test = sentences(0.6, nats=1.51, seed=18, count=TEST)["perplexity"][:, 0]
    assert row.value(row.runs[0], HELD_OUT) == pytest.approx(-np.concatenate([dev, test]).mean())
    assert row.samples[HELD_OUT].mean(1) == pytest.approx(row.observed(HELD_OUT), rel=0.01)
    figures = [one.figure(HELD_OUT) for one in (row, other)]
    assert other.apart[HELD_OUT].value == pytest.approx(figures[1].mean - figures[0].mean)  # type: ignore[union-attr]
    assert other.apart[HELD_OUT].high < 0


def test_it_orders_rows_beside_bleu_and_perplexity(tmp_path: Path) -> None:
    rows = made(tmp_path)
    found = agreements(rows, of_paper(rows), min_difference={})
    held_out = found[-1]
    assert [(one.ours, one.theirs) for one in found][-1] == ("held-out ln P", "BLEU")
    assert held_out.tau == held_out.seeds == 1
    assert held_out.interval is not None
    assert "[" in cells(held_out)[3]
    assert [step for step, _ in held_out.curve] == [1000 * step for step in range(1, 11)]


def test_it_has_a_curve_with_a_band_over_seeds(tmp_path: Path) -> None:
    rows = made(tmp_path)
    plot = next(plot for plot in plots(rows) if plot.name == "held_out_curves")
    assert plot.title == "Held-out ln P in training, mean and standard deviation over seeds"
    assert [line.name for line in plot.panels[0].lines] == [row.name for row in rows]
    values = [run.validated(HELD_OUT)[10_000] for run in rows[0].runs]
    _, mean, _, deviation = plot.panels[0].lines[0].points[-1]
    assert plot.panels[0].lines[0].banded
    assert (mean, deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert values[0] == pytest.approx(rows[0].value(rows[0].runs[0], HELD_OUT) * (1 + 0.7**10))  # type: ignore[operator]


def test_table_and_csv_say_how_far_rows_are_apart_by_it(tmp_path: Path) -> None:
    rows = made(tmp_path, rows=2)
    column = next(column for column in columns(rows) if column.name == "held-out ln P - base")
    apart = rows[1].apart[HELD_OUT]
    assert column.cells[0] == ""
    assert column.cells[1].startswith(f"\u2212{-apart.value:.2f} [")
    line = list(csv.DictReader(io.StringIO(to_csv(rows))))[1]
    assert float(line["held_out_minus_base_low"]) == apart.low
    assert line["held_out_deviation"]
    assert "dev and all test sets" in dict(notes(rows, ""))["held-out ln P"]


def test_without_a_second_set_there_is_none(tmp_path: Path) -> None:
    rows = made(tmp_path, test=0)
    assert rows[0].figure(HELD_OUT) is None
    assert "held-out ln P" not in [one.ours for one in agreements(rows, of_paper(rows), min_difference={})]
    assert "held-out ln P - base" not in [column.name for column in columns(rows)]
    assert "held_out" not in to_csv(rows)
    assert "held_out_curves" not in [plot.name for plot in plots(rows)]


def test_rows_with_other_test_sets_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("a"), test=TEST)
    write_run(tmp_path / "b", config("b", model__heads=4), test=TEST + 2)
    _, row = read(tmp_path)
    assert HELD_OUT not in row.apart
    assert "bleu" in row.apart


@pytest.mark.parametrize("damage", [b"", b"no file of arrays", None])
def test_what_is_damaged_or_missing_leaves_the_other_scores(
    damage: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path / "a", config("a"), test=TEST)
    for file in (folder / "translations" / "last.test.statistics.npz", folder / "likelihoods" / "step_0003000.npz"):
        file.unlink() if damage is None else file.write_bytes(damage)
    row = read(tmp_path)[0]
    assert row.figure(HELD_OUT) is None
    assert row.figure("bleu") is not None
    assert "bleu" in row.samples
    assert 3000 not in row.runs[0].validated(HELD_OUT)
    assert len(row.runs[0].validated(HELD_OUT)) == 9
    assert caplog.text.count("is damaged") == (0 if damage is None else 2)
