"""What W&B would be sent: the panels go by the names of our metrics, and show the sweep's runs alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiayn.runs.run import Run

pytest.importorskip("wandb_workspaces")

from aiayn.report.dashboard import (
    build_report,
    build_workspace,
    figures_table,
    specification,
)

PLACE = {"entity": "team", "project": "aiayn"}
SWEEP = 'it\'s "table3", tiny'  # as a user may name a folder
CONFIG = {"paper": {"bleu": 24.9, "perplexity": 5.29, "parameters": None}}
SCORES = {
    "last": {"dev": {"bleu": {"value": 25.04}, "perplexity": 5.118}},
    "averaged": {"test": {"bleu": {"value": 7}}},
}
RUNS = [
    Run(Path("one"), "table3_a_h1", CONFIG, {"status": "done", "scores": SCORES, "parameters": 1_250_000}),
    Run(Path("two"), "a|b", {"paper": {"parameters": 65e6}}),
]
GROUP = [{"key": {"section": "run", "name": "group"}, "op": "=", "value": SWEEP, "disabled": False}]


def found(key: str, tree: Any) -> Iterator[Any]:
    """All values of the key, anywhere in the JSON."""
    if isinstance(tree, dict):
        yield from (value for name, value in tree.items() if name == key)
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from found(key, value)


def panels(tree: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The settings of the panels, by their kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for of_section in found("panels", tree):
        for panel in of_section if isinstance(of_section, list) else ():
            by_kind.setdefault(panel["viewType"], []).append(panel["config"])
    return by_kind


WORKSPACE = specification(build_workspace(SWEEP, RUNS, **PLACE))
REPORT = specification(build_report(SWEEP, RUNS, ["One head is worse."], **PLACE))


@pytest.mark.parametrize("tree", [WORKSPACE, REPORT], ids=["workspace", "report"])
def test_the_panels_go_by_the_names_of_our_metrics(tree: dict[str, Any]) -> None:
    shown = panels(tree)
    lines = shown["Run History Line Plot"]
    assert [line["metrics"] for line in lines] == [["dev/bleu"], ["dev/perplexity"]]
    assert {line["xAxis"] for line in lines} == {"trainer/global_step"}
    assert shown["Bar Chart"][0]["metrics"] == ["last/dev/bleu", "paper/bleu"]
    assert (shown["Scalar Chart"][0]["metrics"], shown["Scalar Chart"][0]["groupAgg"]) == (["last/dev/bleu"], "max")
    columns = [column["accessor"] for column in shown["Parallel Coordinates Plot"][0]["columns"]]
    settings = {f"config:model.value.{key}" for key in ("heads", "d_k", "d_ff", "dropout")}
    assert settings < set(columns)
    assert columns[-1] == "summary:last/dev/bleu"
    assert len(shown["Run Comparer"]) == 1


def test_the_panels_go_by_the_objective_and_its_direction() -> None:
    metrics = {"ter": {"_target_": "aiayn.evaluation.metrics.ter.Ter"}}
    runs = [Run(Path(name), name, {"objective": "ter", "metrics": metrics}) for name in "ab"]
    shown = panels(specification(build_workspace("x", runs, **PLACE)))
    assert shown["Run History Line Plot"][0]["metrics"] == ["dev/ter"]
    assert shown["Bar Chart"][0]["metrics"] == ["last/dev/ter", "paper/ter"]
    best = shown["Scalar Chart"][0]
    assert (best["chartTitle"], best["metrics"], best["groupAgg"]) == ("Best TER", ["last/dev/ter"], "min")
    assert figures_table(runs).startswith("| row | PPL, paper | PPL | TER, paper | TER | parameters, paper |")


@pytest.mark.parametrize("tree", [WORKSPACE, REPORT], ids=["workspace", "report"])
def test_only_the_runs_of_the_sweep_are_shown(tree: dict[str, Any]) -> None:
    (runs,) = (runs for sets in found("runSets", tree) for runs in sets)
    assert runs["filters"] == {"filterFormat": "filterV2", "filters": GROUP}


def test_a_name_that_the_filters_would_misread_is_refused() -> None:
    with pytest.raises(ValueError, match="'a=1' of the sweep must have no ="):
        build_workspace("a=1", RUNS, **PLACE)


def test_every_run_of_a_large_sweep_is_drawn() -> None:
    runs = [Run(Path(str(number)), str(number)) for number in range(31)]
    shown = panels(specification(build_workspace("many", runs, **PLACE)))
    assert {line["limit"] for line in shown["Run History Line Plot"]} == {31}
    assert (shown["Bar Chart"][0]["limit"], shown["Bar Chart"][0]["barLimit"]) == (31, 62)


def test_the_report_names_the_claims_and_the_papers_figures() -> None:
    texts = list(found("text", REPORT))
    assert "One head is worse." in texts
    assert figures_table(RUNS) in found("content", REPORT)
    assert REPORT["project"] == {"name": "aiayn", "entityName": "team"}


def test_the_table_has_the_papers_figures_beside_those_of_finished_runs() -> None:
    lines = figures_table(RUNS).splitlines()
    assert lines[2] == "| table3_a_h1 | 5.29 | 5.12 | 24.9 | 25.04 |  | 1.2 M |"
    assert lines[3] == "| a\\|b |  |  |  |  | 65.0 M |  |"
    assert {line.replace("\\|", "").count("|") for line in lines[:4]} == {8}


def test_a_score_that_is_a_share_has_four_decimals() -> None:
    scores = {"last": {"dev": {"f1": {"value": 0.91234}}}}
    config = {"objective": "f1", "paper": {"f1": 0.9}}
    lines = figures_table([Run(Path("one"), "one", config, {"status": "done", "scores": scores})]).splitlines()
    assert lines[2] == "| one |  |  | 0.9 | 0.9123 |  |  |"


def test_bleu_is_beside_the_papers_as_it_is_counted_there_where_all_runs_have_that() -> None:
    metrics = {"metrics": {"bleu": {}, "bleu_paper": {}}}
    scores = {"last": {"dev": {"bleu": {"value": 5}, "bleu_paper": {"value": 6}}}}
    runs = [Run(Path("one"), "one", CONFIG | metrics, {"status": "done", "scores": scores})]
    bars = panels(specification(build_workspace("x", runs, **PLACE)))["Bar Chart"][0]
    assert bars["metrics"] == ["last/dev/bleu_paper", "paper/bleu"]
    assert figures_table(runs).splitlines()[0].split(" | ")[4] == "BLEU as in paper"
    assert "| 6.00 |" in figures_table(runs)
    assert figures_table([*runs, RUNS[1]]).splitlines()[0].split(" | ")[4] == "sacreBLEU"


def test_a_report_chooses_which_scores_stand_for_a_run() -> None:
    runs = [
        Run(
            Path("one"),
            "big",
            {"report": {"checkpoint": "averaged", "split": "test"}},
            {"status": "done", "scores": SCORES},
        )
    ]
    tree = specification(build_workspace("table2", runs, **PLACE))
    assert panels(tree)["Bar Chart"][0]["metrics"] == ["averaged/test/bleu", "paper/bleu"]
    assert "| 7.00 |" in figures_table(runs)
