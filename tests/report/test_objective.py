"""Whatever decides has intervals, columns, curves and a direction; and what a folder names is built only if trusted."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import METRICS, config, write_run

from aiayn.report.agreement import Comparison
from aiayn.report.distance import bootstrap
from aiayn.report.formats import to_csv
from aiayn.report.notes import notes
from aiayn.report.page import page
from aiayn.report.plots import plots
from aiayn.report.rows import Row, rows_of
from aiayn.report.statistics import metric_of
from aiayn.report.table import columns
from aiayn.runs.run import read_folder
from aiayn.runs.sweep import Progress, table

ROOT = Path(__file__).parents[2]
OWN = """
class Twice:
    name, higher_is_better = "twice", False

    def value(self, sums):
        return 2 * sums[..., 0] / sums[..., 1]
"""

NOTHING = Comparison([], "")


def rows(folder: Path, *, trusted: tuple[str, ...] = (), **keys: Any) -> list[Row]:
    """Two rows, the second with more errors."""
    for name, quality in (("a_base", 0.6), ("b", 0.5)):
        write_run(folder / name, config(name) | keys, quality=quality)
    found = rows_of(read_folder(folder), trust=trusted)
    bootstrap(found)
    return found


def test_a_table_goes_by_the_objective_and_says_where_less_is_better(tmp_path: Path) -> None:
    found = rows(tmp_path, objective="ter")
    cells = {column.name: column.cells for column in columns(found)}
    assert list(cells) == ["row", "state", "PPL", "TER", "TER - base", "p (Holm)", "params", "s/step", "runs"]
    assert cells["TER - base"][1].startswith("+")  # more errors
    assert found[1].apart["ter"].low > 0 > found[1].apart["bleu"].high
    said = dict(notes(found, ""))
    assert said["TER"] == "tok:tercom; less is better"
    assert said["TER - base"].endswith("; less is better; one seed: the spread of training is not in it")
    assert "of TER against base" in said["p (Holm)"]
    assert "BLEU" not in said
    html = page("x", found, [], [], NOTHING, [])
    assert ">TER</button>" in html
    assert ">BLEU</button>" not in html


def test_plots_and_live_tables_go_by_the_objective(tmp_path: Path) -> None:
    found = rows(tmp_path, objective="ter")
    curves, perplexities, flops = plots(found)
    assert (curves.title.split(",")[0], curves.panels[0].y_label) == ("Dev TER in training", "dev TER")
    assert (perplexities.name, perplexities.panels[0].y_label) == ("perplexity_curves", "dev PPL")
    ends = [line.points[-1][1] for line in curves.panels[0].lines]
    assert ends[0] < ends[1]
    assert flops.panels[0].y_label == "TER, dev"
    shown = table([Progress.of(row.runs[0]) for row in found])
    (head,) = [column for column in shown.columns if str(column.header).startswith("dev")]
    assert head.header == "dev\nter"  # as runs are called that have no averaged checkpoint
    assert [f"{end:.2f}" for end in ends] != list(head.cells) == ["", ""]


def test_perplexity_may_decide_and_has_one_column(tmp_path: Path) -> None:
    found = [column.name for column in columns(rows(tmp_path, objective="perplexity"))]
    assert found[2:5] == ["PPL", "PPL - base", "p (Holm)"]


def test_scores_that_others_publish_stand_beside_ours(tmp_path: Path) -> None:
    published = {"paper": "Some et al.", "metric": "ter", "with": 40.25, "without": None}
    found = rows(tmp_path, published=published)
    cells = {column.name: column.cells for column in columns(found)}
    assert list(cells)[3:7] == ["TER", "TER published", "TER - published", "BLEU"]
    assert cells["TER published"] == ["40.25", "40.25"]
    assert "published - base" not in cells
    assert dict(notes(found, ""))["published"].startswith(f"{found[0].name}: ter 40.25 (Some et al.); ")
    value = METRICS["ter"].value(np.load(tmp_path / "b/translations/last.dev.statistics.npz")["ter"].sum(0))
    assert float(cells["TER - published"][1]) == pytest.approx(float(value) - 40.25, abs=0.005)


def test_effects_that_others_publish_stand_beside_our_distance_from_base(tmp_path: Path) -> None:
    published = {"paper": "Some et al.", "system": "base", "metric": "bleu", "with": 26.5, "without": 27, "seeds": 3}
    found = rows(tmp_path, published=published)
    cells = {column.name: column.cells for column in columns(found)}
    assert cells["published - base"] == ["\u22120.50 BLEU"] * 2
    assert "BLEU published" not in cells  # of another system
    said = dict(notes(found, ""))["published"].split("; ")
    assert said == [f"{row.name}: bleu 26.5, without 27 (Some et al., base, seeds: 3)" for row in found]


def test_every_metric_of_the_runs_has_its_interval_in_the_csv(tmp_path: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(rows(tmp_path)))))
    for key, sign in (("bleu", -1), ("ter", 1)):
        assert sign * float(lines[1][f"{key}_minus_base_low"]) > 0
        assert 0 < float(lines[1][f"{key}_p_holm"]) < 0.05
    assert (lines[1]["chrf_minus_base"], lines[1]["perplexity_minus_base"] != "") == ("", True)  # chrF has no counts


def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Metrics of a config, one of them from a package of one's own."""
    (folder / "elsewhere").mkdir(parents=True)
    (folder / "elsewhere" / f"own_{folder.name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder / "elsewhere")
    return {**config("x")["metrics"], "ter": {"_target_": f"own_{folder.name}.Twice"}}


def test_a_metric_of_ones_own_is_built_when_its_package_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, package = own(tmp_path, monkeypatch), f"own_{tmp_path.name}"
    found = rows(tmp_path / "runs", objective="ter", metrics=metrics)
    assert "ter" not in found[1].apart
    assert package not in sys.modules
    assert caplog.text.count(f"metrics.ter names {package}.Twice") == 1  # of both rows
    assert f"trust=[{package}]" in caplog.text
    assert [column.name for column in columns(found)][3] == "TER"  # as the runs call it
    found = rows_of(read_folder(tmp_path / "runs"), trust=[package])
    bootstrap(found)
    assert found[1].apart["ter"].low > 0
    assert not found[1].metrics["ter"].higher_is_better
    assert [column.name for column in columns(found)][3:5] == ["twice", "twice - base"]


def test_rows_that_were_counted_otherwise_are_not_compared(tmp_path: Path) -> None:
    other = {**config("x")["metrics"], "bleu": {"_target_": "aiayn.evaluation.metrics.bleu.Bleu", "lowercase": True}}
    write_run(tmp_path / "a_base", config("a_base"))
    write_run(tmp_path / "b", config("b") | {"metrics": other})
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert list(found[1].apart) == ["perplexity", "ter"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [np.ones((200, 1)), np.full((200, 2), 1e308)], ids=["columns", "no number"])
def test_counts_that_do_not_fit_their_metric_are_left_out_with_a_word(
    wrong: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a_base", "b"):
        file = write_run(tmp_path / name, config(name)) / "translations" / "last.dev.statistics.npz"
        np.savez(file, **{**np.load(file), "ter": wrong})
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert list(found[1].apart) == ["bleu", "perplexity"]
    assert "has counts of ter that do not fit it" in caplog.text


@pytest.mark.parametrize("target", ["aiayn.evaluation.metrics.bleu.np.save", "os.rmdir", "aiayn.files.write_text"])
def test_a_folder_calls_nothing_else(target: str, tmp_path: Path) -> None:
    entry = {"_target_": target, "path": str(tmp_path / "x"), "file": str(tmp_path / "x"), "arr": [1], "text": "x"}
    assert metric_of("x", json.dumps(entry), ()) is None
    assert list(tmp_path.iterdir()) == []
