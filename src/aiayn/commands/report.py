"""task=report: a sweep, or any folder of runs, as a table beside the paper's figures, with plots and verdicts."""

import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.text import Text

from aiayn.evaluation.halving import replay
from aiayn.files import write_text
from aiayn.identity import claims_hashes
from aiayn.paths import path_of
from aiayn.report.agreement import Comparison, agreements, ceiling, of_paper, of_report
from aiayn.report.claims import Claim, Verdict, claims_about, judge
from aiayn.report.distance import bootstrap, comparable
from aiayn.report.equal_cost import equal_cost
from aiayn.report.formats import agreements_to_terminal, terminal_table, to_csv, to_latex, to_markdown, to_terminal
from aiayn.report.notes import listed, notes
from aiayn.report.page import page
from aiayn.report.plots import agreement_plots, draw, plots
from aiayn.report.rows import Row, base_of, rows_of
from aiayn.report.table import Notes, Section, verdict_cells, verdict_note
from aiayn.runs.run import Run, read_folder, read_rows
from aiayn.terminal import Terminal, visible

FEWEST_REPLAYED = 8  # runs, of which halves say something
OF_REPORT = ("task=", "folder=", "against=", "report.", "claims")  # overrides that the sweep itself did not have


def report(*configs: DictConfig) -> None:
    """Write the report of a sweep's rows, or of the runs in `folder`, and print its table.

    Raises:
        ValueError: if there is neither a sweep nor a folder with runs, the runs lack the objective that is asked for,
            or a claim is malformed.
    """
    cfg = configs[0]
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if is_sweep == bool(cfg.folder):
        raise ValueError("task=report needs a sweep or a folder of runs: give sweep=..., or folder=PATH, one of them.")
    runs = read_rows(configs) if is_sweep else read_folder(Path(cfg.folder))
    # The rows of a sweep have been composed with what the command line says of `report`; runs in a folder have not.
    asked = any(override.startswith("objective=") for override in HydraConfig.get().overrides.task)
    chosen = {"checkpoint": cfg.report.checkpoint, "split": cfg.report.split}
    chosen |= {"objective": cfg.objective} if asked else {}
    rows = rows_of(runs) if is_sweep else rows_of(runs, **chosen, trust=cfg.trust)
    known = {str(key) for row in rows for key in (*row.scored, *(row.config.get("metrics") or ()))}
    if asked and cfg.objective not in known:
        raise ValueError(f"objective={cfg.objective} is no score of these runs; they have {', '.join(sorted(known))}.")
    bootstrap(rows)
    verdicts = judge(read_claims(cfg, rows), rows)
    folder = common_folder(runs) if is_sweep else Path(cfg.folder)
    facts = [*notes(rows, command() if is_sweep else ""), *claims_stamp(rows, verdicts), *halving_note(rows)]
    write(folder, rows, facts, verdicts, compared(rows, cfg))


def compared(rows: Sequence[Row], cfg: DictConfig) -> Comparison:
    """The rows beside those of the report `against`, or else beside the paper's.

    Raises:
        ValueError: if there is no such report, or `report.min_difference` is no numbers.
    """
    least: Any = OmegaConf.to_container(cfg.report).get("min_difference")  # type: ignore[union-attr]
    values: list[Any] = list(least.values()) if isinstance(least, dict) else [None]
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in values):
        raise ValueError(f"report.min_difference must be numbers by score, 0 or more, as {{bleu: 0.3}}, got {least}.")
    reference = of_report(path_of(cfg, "against")) if cfg.against is not None else of_paper(rows)
    found = agreements(rows, reference, min_difference=least)
    whose = str(cfg.against or "the paper")
    return Comparison(found, whose, ceiling(reference, rows[0].objective))


def read_claims(cfg: DictConfig, rows: Sequence[Row]) -> list[Claim]:
    """Those of the config's claims that are about these rows."""
    claims: Any = OmegaConf.to_container(cfg.get("claims") or OmegaConf.create(), resolve=True)
    experiments = GlobalHydra.instance().config_loader().get_group_options("experiment")
    configs = [cfg, *(row.config for row in rows)]
    metrics = dict.fromkeys(str(key) for config in configs for key in config.get("metrics") or {})
    return claims_about([row.name for row in rows], claims, experiments=experiments, metrics=metrics)


def claims_stamp(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Notes:
    """The hash of each file of claims, and whether it is as it was when the first of the done runs began."""
    done = [run for row in rows for run in row.done]
    if not verdicts or not done:
        return []
    before = min(done, key=lambda run: run.ended).result.get("claims")
    told, chosen = [], re.findall(r"[\w.-]+", str(HydraConfig.get().runtime.choices.get("claims")))
    for name, found in claims_hashes().items():
        if name in chosen:
            then = before.get(name, "not there") if isinstance(before, dict) else None
            said = "as when the first run that is done began"
            if then != found:
                said = f"changed since the first run that is done began (then {then})"
            told.append(f"{name} {found}, {said if then else 'the first run that is done does not say what they were'}")
    return [("claims", "; ".join(told))] if told else []


def halving_note(rows: Sequence[Row]) -> Notes:
    """What `callbacks=halving` would have saved of these runs, in the order in which they ended, and got wrong."""
    base = base_of(rows)
    alike = [row for row in rows if row is base or comparable(row, base, "perplexity")]  # of the same pieces of dev
    runs = [(run, row.called(run)) for row in alike for run in row.done if not run.result.get("stopped")]
    runs = sorted((one for one in runs if len(one[0].validated("perplexity")) > 2), key=lambda one: one[0].ended)
    if len(runs) < FEWEST_REPLAYED:
        return []
    perplexities = [run.validated("perplexity") for run, _ in runs]
    curves = [{step: -math.log(value) for step, value in of_run.items()} for of_run in perplexities]
    found = replay(curves, reduction=2, least=0.1)
    wrongly = f" ({listed([runs[number][1] for number in found.wrongly], len(runs))})" if found.wrongly else ""
    told = (
        f"callbacks=halving would have saved {found.saved:.0%} of the steps of these {len(runs)} runs; it stops "
        f"{len(found.stopped)}, {len(found.wrongly)} of them in the better half at the end{wrongly}; the best to go "
        f"on ends {found.regret:.3f} nats a piece behind the best"
    )
    return [("halving", told)]


def common_folder(runs: Sequence[Run]) -> Path:
    """The folder of a sweep."""
    return Path(os.path.commonpath([run.folder.parent for run in runs]))


def command() -> str:
    """The command line of the sweep that is reported."""
    overrides = [argument for argument in sys.argv[1:] if not argument.lstrip("+~").startswith(OF_REPORT)]
    return shlex.join(["python", "src/run.py", *overrides])


def write(folder: Path, rows: Sequence[Row], known: Notes, verdicts: Sequence[Verdict], comparison: Comparison) -> None:
    """Write the files into `report` below the folder, and print the table and where they are."""
    target = folder / "report"
    target.mkdir(parents=True, exist_ok=True)
    drawn, sections = [*plots(rows), *agreement_plots(comparison)], equal_cost(rows)
    texts = {
        "index.html": page(folder.resolve().name, rows, known, verdicts, comparison, drawn, sections),
        "table.md": to_markdown(rows, known, verdicts, comparison, sections),
        "table.csv": to_csv(rows),
        "table.tex": to_latex(rows, known),
    }
    for name, text in texts.items():
        write_text(target / name, text)
    for plot in drawn:
        draw(plot, target / f"{plot.name}.png")
    show(rows, known, verdicts, comparison)
    show_sections(sections)
    for name in (*texts, *(f"{plot.name}.png" for plot in drawn)):
        print(visible(target / name))


def show_sections(sections: Sequence[Section]) -> None:
    """Print further tables, and what is to know about them."""
    console = Terminal()
    for section in sections:
        console.print(Text(f"\n{section.title}\n", "bold"))
        console.print(terminal_table(section.columns, width=console.width))
        console.print(Text(section.note, "dim"), soft_wrap=True)


def show(rows: Sequence[Row], known: Notes, verdicts: Sequence[Verdict], comparison: Comparison) -> None:
    """Print the table, what is to know about it, the verdicts, and how far to believe the order of the rows."""
    console = Terminal()
    console.print(to_terminal(rows, width=console.width))
    for label, text in known:
        console.print(Text.assemble((f"{label}: ", "dim"), text), soft_wrap=True)
    for verdict in verdicts:
        text, found, _, _, outcome = verdict_cells(verdict)
        measured = f"\n  {found}" if found else ""
        console.print(Text.assemble((f"\n{outcome}", "bold"), f": {text}{measured}"), soft_wrap=True)
    if verdicts:
        console.print(Text(f"\n{verdict_note(verdicts)}", "dim"), soft_wrap=True)
    if comparison.agreements:
        console.print(Text(f"\n{comparison.reading}\n"), soft_wrap=True)
        console.print(agreements_to_terminal(comparison, width=console.width))
