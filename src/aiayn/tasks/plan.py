"""task=plan: what a run, or each row of a sweep, will cost, and which rows could not run; nothing is launched.

All is counted from the composed configs (`evaluation/cost.py`), without torch and without the corpus. Hours are the
floating-point operations of the matrix products over an assumed share of an accelerator's peak. A row that would be
refused later is named with its rule, and the others are planned all the same.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aiayn.evaluation.cost import parameters, training_flops, training_memory
from aiayn.schema import check

GIB = 2**30
SIZES = ("layers", "d_model", "d_ff", "heads", "d_k", "d_v")
PARTS = {  # the classes that evaluation/cost.py counts ...
    "attention": {"aiayn.model.attention.MultiHeadAttention"},
    "feed_forward": {"aiayn.model.feed_forward.FeedForward"},
    "norm": {"aiayn.model.norm.PostNorm"},
    "position": {"aiayn.model.position.SinusoidalPosition", "aiayn.model.position.LearnedPosition"},
}
OTHER_KEYS = {"_target_", "_partial_", "max_length"}  # ... and those of their keys that are no sizes of the model
PRECISIONS = {"bf16-mixed": "bfloat16", "bf16": "bfloat16", "32-true": "float32", "32": "float32"}


@dataclass(frozen=True)
class Assumptions:
    """What the costs are computed with besides the configs: the keys of `plan`, and of the accelerator it names."""

    accelerator: str
    devices: int
    utilization: float
    sentence_length: float
    bfloat16: float | None  # peak TFLOP/s, likewise float32
    float32: float
    memory: float  # GiB


@dataclass
class Plan:
    """What a row will cost, or why it cannot run; None where that is not known."""

    name: str
    sizes: dict[str, int] | None = None
    precision: str | None = None
    parameters: int | None = None
    paper_parameters: float | None = None
    flops_per_step: float | None = None
    flops: float | None = None
    paper_flops: float | None = None
    tokens: int | None = None  # of each side, repetitions counted, at most
    memory_bytes: float | None = None  # of one device
    hours: float | None = None
    refused: str | None = None  # the rule
    uncounted: str | None = None  # parts of the model that the formulas do not know


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
    show(plans, totals, assumptions)
    for note in notes(plans, rows, assumptions):
        print(note)
    output = rows[0].plan.output or (folder.parent / "plan.json" if is_sweep else None)
    if output:
        content = {"assumptions": asdict(assumptions), "rows": [asdict(row) for row in plans], "totals": totals}
        temporary = Path(f"{output}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(output)
        print(f"plan: {output}")
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
    name, known = config["accelerator"], config["accelerators"]
    if name not in known:
        raise ValueError(
            f"plan.accelerator={name} is not known; there are {', '.join(known)}, "
            f"or add one: '+plan.accelerators.{name}={{bfloat16: ..., float32: ..., memory: ...}}'."
        )
    values = {f"plan.{key}": config[key] for key in ("devices", "utilization", "sentence_length")}
    values |= {f"plan.accelerators.{name}.{key}": known[name].get(key) for key in ("bfloat16", "float32", "memory")}
    for key, value in values.items():
        if value is None and key.endswith(".bfloat16"):
            continue
        kind, words = (int, "whole number") if key == "plan.devices" else (int | float, "number")
        most = 1 if key == "plan.utilization" else math.inf
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= most:
            raise ValueError(f"{key} must be a {words} above 0{' and at most 1' if most == 1 else ''}, got {value}.")
    return Assumptions(name, **{key.split(".")[-1]: value for key, value in values.items()})


def plan_row(cfg: DictConfig, name: str, assumptions: Assumptions) -> Plan:
    """The plan of one row; a row that cannot run says why."""
    try:
        config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        check(config)
        return estimate(config, name, assumptions)
    except OmegaConfBaseException as error:
        reason = str(error).split("\n")[0].removeprefix("ValueError raised while resolving interpolation: ")
        return Plan(name, refused=f"{error.full_key}: {reason}")
    except ValueError as error:
        return Plan(name, refused=str(error))


def estimate(config: Mapping[str, Any], name: str, assumptions: Assumptions) -> Plan:
    """What a row will cost.

    Raises:
        ValueError: if it cannot run.
    """
    model, data, steps = config["model"], config["data"], config["training"]["max_steps"]
    sizes = {key: model[key] for key in SIZES}
    for key, size in [("data.vocab_size", data["vocab_size"]), *((f"model.{key}", sizes[key]) for key in SIZES)]:
        if size < 1:
            raise ValueError(f"{key} must be at least 1, got {size}. Give a positive whole number.")
    learned = learned_positions(model, data)
    tokens = micro_batch_tokens(data, assumptions.devices)
    precision = chosen_precision(config["trainer"]["precision"], assumptions)
    row = Plan(
        name,
        sizes={**sizes, "vocab_size": data["vocab_size"]},
        precision=precision,
        paper_parameters=config["paper"]["parameters"],
        paper_flops=config["paper"]["flops"],
        tokens=steps * data["tokens_per_batch"],
        uncounted=", ".join(uncounted(model)) or None,
    )
    if row.uncounted:
        return row
    sizes["vocab_size"] = data["vocab_size"]
    row.parameters = parameters(**sizes, learned_positions=learned)
    row.flops_per_step = training_flops(
        **sizes,
        source_tokens=data["tokens_per_batch"],
        target_tokens=data["tokens_per_batch"],
        source_length=assumptions.sentence_length,
        target_length=assumptions.sentence_length,
    )
    row.flops = row.flops_per_step * steps
    rate = 1e12 * getattr(assumptions, precision) * assumptions.utilization * assumptions.devices
    row.hours = row.flops / rate / 3600
    memory = partial(
        training_memory,
        **sizes,
        dropout=model["dropout"],
        learned_positions=learned,
        bfloat16=precision == "bfloat16",
        devices=assumptions.devices,
    )
    row.memory_bytes = memory(tokens=tokens)
    check_memory(memory, tokens, longest_pair(data), assumptions)
    return row


def check_memory(memory: Callable[..., float], tokens: float, longest: int, assumptions: Assumptions) -> None:
    """Refuse a micro-batch that the accelerator does not hold, and name one that it does."""
    limit = assumptions.memory * GIB
    if memory(tokens=tokens) <= limit:
        return
    fitting = int(tokens)
    while fitting > longest and memory(tokens=fitting) > limit:
        fitting -= math.ceil(fitting / 16)
    remedy = "choose another plan.accelerator"
    if fitting > longest:
        remedy = f"set data.tokens_per_device={fitting} or less, which does not change the experiment"
    raise ValueError(
        f"a micro-batch of {tokens:.0f} tokens a side needs about {memory(tokens=tokens) / GIB:.1f} GiB "
        f"({memory(tokens=0) / GIB:.1f} GiB without any token), and {assumptions.accelerator} has "
        f"{assumptions.memory:g} GiB; {remedy}."
    )


def longest_pair(data: Mapping[str, Any]) -> int:
    """Tokens of the longest training sentence that cleaning keeps, with EOS; 1 if it knows no limit."""
    return (data["cleaning"]["max_length"] or 0) + 1


def learned_positions(model: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """How many positions are learned; 0 for other kinds.

    Raises:
        ValueError: if the positions do not fit the model or the data.
    """
    position = model["position"]
    if position["_target_"].endswith(".SinusoidalPosition") and model["d_model"] % 2:
        raise ValueError(
            f"model.d_model must be even for sinusoidal positions, which pair a sine with a cosine, "
            f"got {model['d_model']}; choose an even d_model or model/position=learned."
        )
    if not position["_target_"].endswith(".LearnedPosition"):
        return 0
    check_room("model.position.max_length", position["max_length"], data)
    return position["max_length"]


def check_room(key: str, room: int, data: Mapping[str, Any]) -> None:
    """Refuse what the longest training sentence may not fit."""
    if room < longest_pair(data):
        raise ValueError(
            f"{key}={room} is smaller than the longest sentence that "
            f"data.cleaning.max_length={data['cleaning']['max_length']} keeps, {longest_pair(data)} tokens with EOS; "
            f"raise the former, or lower the latter."
        )


def micro_batch_tokens(data: Mapping[str, Any], devices: int) -> float:
    """Tokens of each side that a device holds at a time, at most: `accumulation_steps` of data/batching.py.

    Raises:
        ValueError: if the longest pair may not fit.
    """
    per_batch, per_device, longest = data["tokens_per_batch"], data["tokens_per_device"], longest_pair(data)
    check_room("data.tokens_per_batch", per_batch, data)
    if devices == 1 and (per_device is None or per_batch <= per_device):
        return per_batch
    accumulation = 1
    if per_device is not None:
        check_room("data.tokens_per_device", per_device - 1, data)
        accumulation = math.ceil(per_batch / (devices * (per_device - longest)))
    return min(per_batch, per_batch / (devices * accumulation) + longest)


def chosen_precision(precision: object, assumptions: Assumptions) -> str:
    """`bfloat16` or `float32`: what `trainer.precision` means on the accelerator."""
    if precision == "auto":
        return "bfloat16" if assumptions.bfloat16 else "float32"
    found = PRECISIONS.get(str(precision))
    if found is None:
        raise ValueError(f"trainer.precision={precision} cannot be planned; there are auto, bf16-mixed and 32-true.")
    if getattr(assumptions, found) is None:
        raise ValueError(
            f"trainer.precision={precision} is not to be had: {assumptions.accelerator} has no {found}; "
            f"choose 32-true, or another plan.accelerator."
        )
    return found


def uncounted(model: Mapping[str, Any]) -> list[str]:
    """The parts that the formulas do not know: of another class, with other options, or of other sizes."""
    found = []
    for part, targets in PARTS.items():
        node = model[part]
        differs = any(model.get(key) != value for key, value in node.items() if key not in OTHER_KEYS)
        if node["_target_"] not in targets or differs:
            found.append(f"model.{part}={node['_target_']}")
    return found


def total(plans: Sequence[Plan], assumptions: Assumptions) -> dict[str, Any]:
    """Of the rows that can run and are counted; memory is that of the largest."""
    counted = [row for row in plans if row.hours is not None]
    hours = sum(row.hours or 0 for row in counted)
    return {
        "rows": len(plans),
        "refused": sum(row.refused is not None for row in plans),
        "uncounted": sum(row.uncounted is not None for row in plans),
        "flops": sum(row.flops or 0 for row in counted),
        "tokens": sum(row.tokens or 0 for row in counted),
        "memory_bytes": max((row.memory_bytes or 0 for row in counted), default=0),
        "hours": hours,
        "device_hours": hours * assumptions.devices,
    }


def show(plans: Sequence[Plan], totals: Mapping[str, Any], assumptions: Assumptions) -> None:
    """Print the table, the paper's figures beside ours where it has some."""
    columns = {
        "parameters": "parameters\nmillions",
        "paper_parameters": "the paper's\nmillions",
        "flops_per_step": "FLOPs\na step",
        "flops": "FLOPs\nin all",
        "paper_flops": "the paper's\nFLOPs",
        "tokens": "tokens\na side",
        "memory_bytes": "memory\nGiB",
        "hours": f"hours on\n{assumptions.devices} {assumptions.accelerator}",
        "refused": "refused\n",
    }
    columns = {
        key: header
        for key, header in columns.items()
        if key not in ("paper_parameters", "paper_flops", "refused") or any(getattr(row, key) for row in plans)
    }
    table = Table(box=SIMPLE_HEAD)
    table.add_column("row\n", overflow="fold")
    for key, header in columns.items():
        table.add_column(
            header,
            justify="left" if key == "refused" else "right",
            min_width=40 if key == "refused" else None,
            overflow="fold",
        )
    for row in plans:
        table.add_row(*map(escape, (row.name, *(form(key, getattr(row, key)) for key in columns))))
    if len(plans) > 1:
        sums = {**totals, "refused": f"{totals['refused']} of {totals['rows']}"}
        name = f"all {totals['rows'] - totals['refused'] - totals['uncounted']}"
        table.add_section()
        table.add_row(name, *(form(key, sums.get(key)) for key in columns))
    # Where the output goes to a file or a pipe, there is no width that it must fit.
    Console(width=None if sys.stdout.isatty() else 160).print(table, highlight=False)


def form(key: str, value: Any) -> str:
    """A figure as the table has it; empty if there is none."""
    if value is None or isinstance(value, str):
        return value or ""
    if key.endswith("parameters"):
        return f"{value / 1e6:.1f}"
    if key == "memory_bytes":
        return f"{value / GIB:.1f}"
    if key == "hours":
        return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    return f"{value:.1e}"


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
    if any(row.scale.width != 1 or row.scale.depth != 1 for row in rows):
        lines.append(f"scale={rows[0].scale.name}: the paper's figures are those of its own sizes.")
    elif any(row.parameters and row.paper_parameters and not same_millions(row) for row in plans):
        # Table 3, last column: which vocabulary gives it (tests/test_paper.py).
        lines.append(
            "Parameters: the paper's fit a vocabulary of 40,960 in base and (A) to (C), of 35,800 in big; "
            "its text says about 37,000 (section 5.1)."
        )
    if any(row.paper_flops for row in plans):
        lines.append(
            "The paper's FLOPs are seconds x devices x 9.5 TFLOP/s sustained (section 6.1): what the devices could do."
        )
    lines.extend(f"{row.name}: no formula counts {row.uncounted}." for row in plans if row.uncounted)
    return lines


def same_millions(row: Plan) -> bool:
    """Whether the paper prints the same number of parameters, in whole millions."""
    return round((row.parameters or 0) / 1e6) == round((row.paper_parameters or 0) / 1e6)
