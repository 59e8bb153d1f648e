"""task=plan: what a run, or each row of a sweep, will cost, and which rows could not run; nothing is launched.

All is counted from the composed configs and the models that they describe (`cost/estimate.py`), without the corpus, but
for the size of the vocabulary where `data.tokenizer` names one. A row that would be refused later is named with its
rule, and the others are planned all the same.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE_HEAD
from rich.table import Table

from aiayn.cost.estimate import GIB, TWO_MOMENTS, Assumptions, Plan, chosen_precision, estimate
from aiayn.errors import explain
from aiayn.files import write_text
from aiayn.runs.run import names_of, read_rows
from aiayn.schema import check
from aiayn.terminal import Terminal, visible


def plan(*rows: DictConfig) -> None:
    """Print a table of the rows; for a sweep, write plan.json into its folder. Leaves with 1 if a row cannot run.

    Raises:
        ValueError: if the keys of `plan` are out of range.
    """
    config: Any = OmegaConf.to_container(rows[0].plan, resolve=True)
    if config["devices"] is None:
        config["devices"] = devices(rows[0].trainer)
    assumptions = read_assumptions(config)
    folder = Path(rows[0].run_dir)
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    plans = [plan_row(row, Path(row.run_dir).name if is_sweep else row.name, assumptions) for row in rows]
    totals = total(plans, assumptions)
    output = rows[0].plan.output or (folder.parent / "plan.json" if is_sweep else None)
    if output:
        content = {"assumptions": asdict(assumptions), "rows": [asdict(row) for row in plans], "totals": totals}
        write_text(Path(output), json.dumps(content, indent=2) + "\n")
    if is_sweep:
        plans = [replace(of, name=name) for of, name in zip(plans, names_of(read_rows(rows)), strict=True)]
    show(plans, totals, assumptions)
    for note in notes(plans, rows, assumptions):
        print(visible(note))
    if output:
        print(visible(f"plan: {output}"))
    if totals["refused"]:
        raise SystemExit(1)


def devices(trainer: DictConfig) -> int:
    """How many devices a trainer asks for; 1 where it takes what there is."""
    return trainer.devices * trainer.num_nodes if isinstance(trainer.devices, int) and trainer.devices > 0 else 1


def read_assumptions(config: Mapping[str, Any]) -> Assumptions:
    """The assumptions of a `plan` config.

    Raises:
        ValueError: if there is no such accelerator, or a value is out of range.
    """
    name, known = config["accelerator"], config["accelerators"] or {}
    if not isinstance(known.get(name), Mapping):
        raise ValueError(
            f"plan.accelerator={name} is not known; there are {', '.join(known)}, "
            f"or add one: '+plan.accelerators.{name}={{bfloat16: ..., float32: ..., memory: ...}}'."
        )
    values = {f"plan.{key}": config[key] for key in ("devices", "utilization", "sentence_length")}
    values |= {f"plan.accelerators.{name}.{key}": known[name].get(key) for key in ("bfloat16", "float32", "memory")}
    for key, value in values.items():
        if value is None and key.endswith(".bfloat16"):
            continue
        whole = key in ("plan.devices", "plan.sentence_length")
        kind, words = (int, "whole number") if whole else (int | float, "number")
        most = 1 if key == "plan.utilization" else math.inf
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= most or value == math.inf:
            raise ValueError(f"{key} must be a {words} above 0{' and at most 1' if most == 1 else ''}, got {value}.")
    return Assumptions(name, **{key.split(".")[-1]: value for key, value in values.items()})


def plan_row(cfg: DictConfig, name: str, assumptions: Assumptions) -> Plan:
    """The plan of one row; a row that cannot run, or whose model cannot be counted, says why."""
    from aiayn.checkpoints.building import described
    from aiayn.problems.problem import problem_of

    try:
        config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        check(config)
        problem = problem_of(cfg)
        return estimate(config, described(config["model"], **problem.asked_sizes()), name, assumptions)
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        return Plan(name, refused=explain(error))


def total(plans: Sequence[Plan], assumptions: Assumptions) -> dict[str, Any]:
    """Of the rows that can run; memory is that of the largest."""
    counted = [row for row in plans if row.hours is not None]
    hours = sum(row.hours or 0 for row in counted)
    return {
        "rows": len(plans),
        "refused": sum(row.refused is not None for row in plans),
        "flops": sum(row.flops or 0 for row in counted),
        "tokens": sum(row.tokens or 0 for row in counted),
        "memory_bytes": max((row.memory_bytes or 0 for row in counted), default=0),
        "hours": hours,
        "device_hours": hours * assumptions.devices,
    }


def show(plans: Sequence[Plan], totals: Mapping[str, Any], assumptions: Assumptions) -> None:
    """Print the table, the paper's figures beside ours where it has some."""
    columns = {
        "parameters": "params\nmillions",
        "paper_parameters": "paper's\nmillions",
        "flops_per_step": "FLOPs\na step",
        "flops": "FLOPs\nin all",
        "paper_seconds_x_devices_x_rate": "paper's,\nby time",
        "tokens": "tokens\na side",
        "memory_bytes": "memory\nGiB",
        "hours": f"hours on\n{assumptions.devices} {assumptions.accelerator}",
    }
    columns = {
        key: header
        for key, header in columns.items()
        if not key.startswith("paper_") or any(getattr(row, key) for row in plans)
    }
    terminal = Terminal()
    for narrow in ("tokens", "flops_per_step", ""):  # which a narrow terminal goes without
        shown = table(plans, totals, columns)
        if terminal.measure(shown, options=terminal.options.update(width=1000)).maximum <= terminal.width:
            break
        columns.pop(narrow, None)
    terminal.print(shown)


def table(plans: Sequence[Plan], totals: Mapping[str, Any], columns: Mapping[str, str]) -> Table:
    """Of the rows, and below them of all; the columns by the key of their figures."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("row\n", overflow="fold")
    for header in columns.values():
        shown.add_column(header, justify="right", no_wrap=True)
    for row in plans:
        shown.add_row(row.name, *(form(key, getattr(row, key)) for key in columns))
    if len(plans) > 1:
        name = f"all {totals['rows'] - totals['refused']}"
        shown.add_section()
        shown.add_row(name, *(form(key, totals.get(key)) for key in columns))
    return shown


def form(key: str, value: Any) -> str:
    """A figure as the table has it; empty if there is none."""
    if value is None:
        return ""
    if key.endswith("parameters"):
        return f"{value / 1e6:.1f}"
    if key == "memory_bytes":
        return f"{value / GIB:.1f}"
    if key == "hours":
        seconds = 3600 * value
        short = f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.2g} min"
        return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value >= 0.1 else short
    return f"{value:.1e}".replace("e+", "e")


def notes(plans: Sequence[Plan], rows: Sequence[DictConfig], assumptions: Assumptions) -> list[str]:
    """What the figures mean, which assumptions are in them, and why some differ from the paper's."""
    kinds = sorted({row.precision for row in plans if row.precision}) or [chosen_precision("auto", assumptions)]
    peak = " or ".join(f"{getattr(assumptions, kind):g} TFLOP/s in {kind}" for kind in kinds)
    lines = [
        f"Assumed (plan.*): {assumptions.utilization:g} of {assumptions.devices} x {peak}, all through "
        f"training; sentences of {assumptions.sentence_length:g} tokens; no preparing, validating and decoding.",
        "FLOPs: of the matrix products, forward and backward, for data.tokens_per_batch tokens a side, the most that a "
        "step holds.",
        "Memory: of one device, at most: weights, gradients, Adam, a micro-batch; not the half GiB that CUDA takes.",
    ]
    if any(target_of(row) not in TWO_MOMENTS for row in rows):
        lines.append("Memory is as for Adam also where another optimizer is chosen; no such row is refused for it.")
    if any(row.scale.width != 1 or row.scale.depth != 1 for row in rows):
        lines.append(f"scale={rows[0].scale.name}: the paper's figures are those of its own sizes.")
    elif any(row.parameters and row.paper_parameters and not same_millions(row) for row in plans):
        # Table 3, last column: which vocabulary gives it (tests/test_paper.py).
        lines.append(
            "Parameters: the paper's fit a vocabulary of 40,960 in base and (A) to (C), of 35,800 in big; "
            "its text says about 37,000 (section 5.1)."
        )
    if any(row.paper_seconds_x_devices_x_rate for row in plans):
        lines.append(
            "The paper's, by its time: seconds x devices x 9.5 TFLOP/s sustained (section 6.1), what they could do."
        )
    reasons: dict[str, list[str]] = {}
    for row in plans:
        if row.refused:
            reasons.setdefault(row.refused, []).append(row.name)
    lines += [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} refused: {reason}"
        for reason, names in reasons.items()
    ]
    return lines


def target_of(row: DictConfig) -> Any:
    """The class of a row's optimizer; None where the row does not say."""
    return OmegaConf.select(row, "training.optimizer._target_")


def same_millions(row: Plan) -> bool:
    """Whether the paper prints the same number of parameters, in whole millions."""
    return round((row.parameters or 0) / 1e6) == round((row.paper_parameters or 0) / 1e6)
