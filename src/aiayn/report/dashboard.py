"""Weights & Biases dashboards of a sweep as code: a workspace, and a report beside the paper's figures.

The objects are built without a server; their `save()` needs one. What they show goes by the names that
`aiayn.training.tracking` gives: a sweep is a group, a row a run, `dev/bleu` a curve, `last/dev/bleu` a final score and
`paper/bleu` what the paper reports; in place of `bleu` whatever the objective is.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr

from aiayn.report.notes import measured_on
from aiayn.report.rows import SETTINGS, digits_of, name_of, rows_of
from aiayn.report.table import AS_IN_PAPER, as_reported, is_less_better
from aiayn.runs.run import Run

STEP = "trainer/global_step"  # W&B's own step starts again when a run is resumed offline


def measured(runs: Sequence[Run]) -> tuple[str, str]:
    """The checkpoint and the split whose scores stand for a run."""
    row = rows_of(runs)[0]
    return row.checkpoint, row.split


def beside_paper(runs: Sequence[Run]) -> tuple[str, str]:
    """Key and name of the score that is shown beside the paper's: BLEU as it counts where all runs have that."""
    if (objective := runs[0].objective) != "bleu":
        return objective, name_of(rows_of(runs), objective)
    if all("bleu_paper" in (run.config.get("metrics") or {}) for run in runs):
        return "bleu_paper", AS_IN_PAPER
    return "bleu", "sacreBLEU"


def sections(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The panels that compare the runs, by the title of their section."""
    place = "/".join(measured(runs))
    objective, rows = runs[0].objective, rows_of(runs)
    score, (like, counted), name = f"{place}/{objective}", beside_paper(runs), name_of(rows, objective)
    best: Literal["min", "max"] = "min" if is_less_better(rows, objective) else "max"
    curve: dict[str, Any] = {"x": STEP, "max_runs_to_show": len(runs), "layout": wr.Layout(w=12, h=8)}
    return {
        "Curves": [
            wr.LinePlot(title=f"Dev {name}", y=[f"dev/{objective}"], **curve),
            wr.LinePlot(title="Dev perplexity", y=["dev/perplexity"], log_y=True, **curve),
        ],
        "Final scores": [
            wr.BarPlot(
                title=f"{counted} ({place}) beside the paper's",
                metrics=[f"{place}/{like}", f"paper/{objective}"],
                max_runs_to_show=len(runs),
                max_bars_to_show=2 * len(runs),
                layout=wr.Layout(w=18, h=max(8, len(runs))),
            ),
            wr.ScalarChart(title=f"Best {name}", metric=score, groupby_aggfunc=best, layout=wr.Layout(w=6, h=8)),
        ],
        "Settings": [
            wr.ParallelCoordinatesPlot(
                title=f"From the settings to {name}",
                columns=[
                    *(wr.ParallelCoordinatesPlotColumn(wr.Config(key), head) for head, key in SETTINGS.items()),
                    wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(score), name),
                ],
                layout=wr.Layout(w=24, h=9),
            ),
            wr.RunComparer(diff_only="split", layout=wr.Layout(w=24, h=9)),
        ],
    }


def build_workspace(sweep: str, runs: Sequence[Run], *, entity: str, project: str) -> ws.Workspace:
    """A workspace with the runs of one sweep.

    Args:
        sweep: Its folder's name, the group of its runs.
        runs: At least one.
        entity: User or team that has the project.
        project: Where the runs are.

    Raises:
        ValueError: if W&B does not take the sweep's name.
    """
    if symbols := re.findall(r"[=<>|+~^$`]", sweep):  # its filters are text, in which these have a meaning
        raise ValueError(f"the folder {sweep!r} of the sweep must have no {symbols[0]} for W&B; give another name=...")
    pinned = dict.fromkeys([runs[0].objective, "perplexity"])
    return ws.Workspace(
        entity=entity,
        project=project,
        name=sweep,
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections(runs).items()],
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=len(runs)),
        runset_settings=ws.RunsetSettings(
            filters=f"Metric('Group') == {sweep!r}",
            order=[expr.Ordering(expr.Metric("Name"))],
            pinned_columns=[f"summary:{'/'.join((*measured(runs), key))}" for key in pinned],
        ),
    )


def build_report(sweep: str, runs: Sequence[Run], claims: Sequence[str], *, entity: str, project: str) -> wr.Report:
    """A report on one sweep: claims, the paper's figures, and the panels of the workspace.

    Args:
        sweep: Its folder's name, the group of its runs.
        runs: At least one.
        claims: About its rows, in words.
        entity: User or team that has the project.
        project: Where the runs are.
    """
    runset = wr.Runset(  # of the report's own project; to name it would ask the server for its number
        name=sweep,
        filters=f"Metric('Group') == {sweep!r}",
        order=[wr.OrderBy("Name", ascending=True)],
    )
    claimed: list[Any] = [wr.H2("Claims"), wr.UnorderedList(list(claims))] if claims else []
    return wr.Report(
        entity=entity,
        project=project,
        title=f"{sweep} beside the paper",
        description="Attention Is All You Need, Vaswani et al. 2017",
        blocks=[
            *claimed,
            wr.H2("The paper's figures"),
            wr.MarkdownBlock(figures_table(runs)),
            wr.H2("The runs"),
            wr.PanelGrid(runsets=[runset], panels=[panel for panels in sections(runs).values() for panel in panels]),
        ],
        width="fluid",
    )


def figures_table(runs: Sequence[Run]) -> str:
    """Markdown: perplexity, objective and millions of parameters of each row, the paper's and of the finished runs."""
    (key, counted), objective, rows = beside_paper(runs), runs[0].objective, rows_of(runs)
    heads = {"perplexity": "PPL", objective: counted, "parameters": "parameters"}
    named = [f"{name_of(rows, of) if of == objective else head}, paper | {head}" for of, head in heads.items()]
    columns = [[row.name.replace("|", "\\|") for row in rows]]
    for name in heads:
        papers, figures = (
            [row.paper(name) for row in rows],
            [row.figure(key if name == objective else name) for row in rows],
        )
        ours = [figure.mean if figure else None for figure in figures]
        if name == "parameters":
            columns += [
                ["" if value is None else f"{value / 1e6:.1f} M" for value in values] for values in (papers, ours)
            ]
        else:
            places = digits_of(figures)
            columns += [as_reported(papers), ["" if value is None else f"{value:.{places}f}" for value in ours]]
    lines = [f"| row | {' | '.join(named)} |", f"|---|{'---:|' * 2 * len(heads)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
    return "\n".join([*lines, "", f"scores of these runs: {measured_on(rows)}."])


def specification(dashboard: ws.Workspace | wr.Report) -> dict[str, Any]:
    """What W&B would be sent, as JSON."""
    return dashboard._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
