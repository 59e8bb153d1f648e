"""Rows beside base where both have cost as much."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_runs import config, write_run

from aiayn.report.agreement import Comparison
from aiayn.report.equal_cost import at_same_cost, curve_of, equal_cost, gain
from aiayn.report.formats import to_markdown
from aiayn.report.rows import Row, rows_of
from aiayn.runs.run import read_folder

STEPS = [100, 200, 400, 800]
HARD = np.random.default_rng(1).normal(0, 9, 131)  # of each sentence, for whatever model


def rising(step: float) -> float:
    """As curves over the logarithm of the steps: straight."""
    return -60 + 5 * np.log(step)


def write(folder: Path, name: str, curve: Callable[[float], float], *, seed: int = 1, **costs: float) -> None:
    """A run whose mean ln P is on a curve; its 800 steps cost 8e12 FLOPs and 80 s, unless it says otherwise."""
    told = {"steps": 800, "flops": 8e12, "training_seconds": 80.0, **costs}
    run = write_run(folder / f"{name}{seed}", config(name, seed=seed, model__d_ff=512 + len(name)))
    (run / "result.json").write_text(json.dumps(json.loads((run / "result.json").read_text()) | told))
    (run / "likelihoods").mkdir()
    for step in STEPS:
        of_sentences = np.column_stack([curve(step) + HARD - HARD.mean(), np.full(131, 17)])
        np.savez(run / "likelihoods" / f"step_{step:07d}.npz", dev=of_sentences[:31], test=of_sentences[31:])


def read(folder: Path) -> list[Row]:
    return rows_of(read_folder(folder))


def test_a_row_that_needs_half_of_the_steps_gains_two_where_its_steps_cost_the_same(tmp_path: Path) -> None:
    write(tmp_path, "base", rising)
    write(tmp_path, "twice", lambda step: rising(2 * step), training_seconds=240.0)
    base, row = map(curve_of, read(tmp_path))
    assert base is not None
    assert row is not None
    np.testing.assert_allclose(gain(row, base, "flops"), 2)  # on every resample: both see the same sentences
    np.testing.assert_allclose(gain(row, base, "training_seconds"), 2 / 3)
    apart = at_same_cost(row, base, "flops")
    assert apart is not None
    np.testing.assert_allclose(apart, 5 * np.log(2))
    assert at_same_cost(row, base, "training_seconds") is None  # beyond where base ends
    back = at_same_cost(base, row, "training_seconds")  # at a third of its steps, between two validations
    assert back is not None
    np.testing.assert_allclose(back, rising(800) - rising(2 * 800 / 3))


def test_a_row_that_never_gets_there_has_a_bound(tmp_path: Path) -> None:
    write(tmp_path, "base", rising)
    write(tmp_path, "worse", lambda step: rising(step) - 1, flops=4e12)
    (section,) = equal_cost(read(tmp_path))
    cells = {column.name: column.cells for column in section.columns}
    assert cells["row"] == ["worse"]
    assert cells["FLOPs / base"] == ["0.50"]
    assert cells["gain in FLOPs"] == ["< 2.00"]
    assert cells["at the same FLOPs"] == [f"+{5 * np.log(2) - 1:.2f}"]
    assert cells["at the same seconds"] == ["\u22121.00"]


def test_runs_of_a_row_widen_its_interval(tmp_path: Path) -> None:
    write(tmp_path, "base", rising)
    for seed, luck in ((1, 0.5), (2, -0.5)):
        write(tmp_path, "lucky", lambda step, luck=luck: rising(step) + luck, seed=seed)
    base, row = map(curve_of, read(tmp_path))
    assert base is not None
    assert row is not None
    apart = at_same_cost(row, base, "flops")
    assert apart is not None
    assert apart[0] == pytest.approx(0)
    assert set(apart[1:].round(6)) == {-0.5, 0.0, 0.5}


def test_other_sentences_and_rows_without_curves_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "base", rising)
    write_run(tmp_path / "without", config("without", model__heads=4))
    assert equal_cost(read(tmp_path)) == []
    write(tmp_path, "other", rising)
    for file in (tmp_path / "other1" / "likelihoods").iterdir():
        kept = dict(np.load(file))
        np.savez(file, **{name: of + np.array([0, 1]) for name, of in kept.items()})  # in other pieces
    assert equal_cost(read(tmp_path)) == []
    write(tmp_path, "good", rising)
    (section,) = equal_cost(read(tmp_path))
    assert section.columns[0].cells == ["good"]
    text = to_markdown(read(tmp_path), [], [], Comparison([], ""), [section])
    assert "## At equal cost, beside base\n\n| row | at its end | FLOPs / base |" in text


def test_a_cost_that_is_not_known_has_no_columns(tmp_path: Path) -> None:
    write(tmp_path, "base", rising, flops=0)
    write(tmp_path, "row", rising)
    (section,) = equal_cost(read(tmp_path))
    names = [column.name for column in section.columns]
    assert names == ["row", "at its end", "seconds / base", "at the same seconds", "gain in seconds"]
