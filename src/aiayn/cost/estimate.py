"""What training a config will cost on an accelerator, or which rule it breaks; from the config and its model alone.

Hours are the floating-point operations of the matrix products over an assumed share of the accelerator's peak. What
needs torch is imported where it is used.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiayn.data.step_size import accumulation_steps

if TYPE_CHECKING:
    from aiayn.model.model import Model

GIB = 2**30
TWO_MOMENTS = {"torch.optim.Adam", "torch.optim.AdamW"}  # which memory is counted for; others may need less, or more
PRECISIONS = {"bf16-mixed": "bfloat16", "bf16": "bfloat16", "32-true": "float32", "32": "float32"}


@dataclass(frozen=True)
class Assumptions:
    """What the costs are computed with besides the configs: the keys of `plan`, and of the accelerator it names."""

    accelerator: str
    devices: int
    utilization: float
    sentence_length: int
    bfloat16: float | None  # peak TFLOP/s, likewise float32
    float32: float
    memory: float  # GiB


@dataclass
class Plan:
    """What a row will cost, or why it cannot run; None where that is not known."""

    name: str
    precision: str | None = None
    parameters: int | None = None
    paper_parameters: float | None = None
    flops_per_step: float | None = None
    flops: float | None = None
    paper_flops: float | None = None  # counted as ours are
    paper_seconds_x_devices_x_rate: float | None = None  # as Table 2 has them
    tokens: int | None = None  # of each side, repetitions counted, at most
    memory_bytes: float | None = None  # of one device
    hours: float | None = None
    refused: str | None = None  # the rule


def estimate(config: Mapping[str, Any], model: "Model", name: str, assumptions: Assumptions) -> Plan:
    """What a row will cost.

    Args:
        config: Of the row.
        model: The one that it describes, on the meta device.
        name: Of the row.
        assumptions: What is not in the config.

    Raises:
        ValueError: if it cannot run, or the model cannot be counted.
    """
    from aiayn.cost.counting import pair_flops, parameters
    from aiayn.cost.memory import activation_bytes, training_memory

    data, steps, length = config["data"], config["training"]["max_steps"], assumptions.sentence_length
    if model.longest is not None:
        check_room("model.position.max_length", model.longest, data)
    tokens = micro_batch_tokens(data, assumptions.devices)
    precision = chosen_precision(config["trainer"]["precision"], assumptions)
    flops = pair_flops(model, source_length=length, target_length=length, pairs=max(1, int(tokens // length)))
    row = Plan(
        name,
        precision=precision,
        parameters=parameters(model),
        paper_parameters=config["paper"].get("parameters"),
        flops_per_step=flops * data["tokens_per_batch"] / length,
        paper_flops=config["paper"].get("counted_flops"),
        paper_seconds_x_devices_x_rate=config["paper"].get("flops"),
        tokens=steps * data["tokens_per_batch"],
    )
    row.flops = row.flops_per_step * steps
    rate = 1e12 * getattr(assumptions, precision) * assumptions.utilization * assumptions.devices
    row.hours = row.flops / rate / 3600
    longest = longest_pair(data) if data["cleaning"]["max_length"] else length  # which attention may keep most of
    pairs = max(1, int(tokens // longest))
    kept = activation_bytes(model, pairs=pairs, length=longest, bfloat16=precision == "bfloat16")
    memory = partial(
        training_memory,
        model,
        activations=kept / (pairs * longest),
        bfloat16=precision == "bfloat16",
        devices=assumptions.devices,
    )
    row.memory_bytes = memory(tokens=tokens)
    if config["training"]["optimizer"]["_target_"] in TWO_MOMENTS:
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


def check_room(key: str, room: int, data: Mapping[str, Any]) -> None:
    """Refuse what the longest training sentence may not fit."""
    if room < longest_pair(data):
        raise ValueError(
            f"{key}={room} is smaller than the longest sentence that "
            f"data.cleaning.max_length={data['cleaning']['max_length']} keeps, {longest_pair(data)} tokens with EOS; "
            f"raise the former, or lower the latter."
        )


def micro_batch_tokens(data: Mapping[str, Any], devices: int) -> float:
    """Tokens of each side that a device holds at a time, at most.

    Raises:
        ValueError: if the longest pair may not fit.
    """
    per_batch, longest = data["tokens_per_batch"], longest_pair(data)
    check_room("data.tokens_per_batch", per_batch, data)
    accumulation = accumulation_steps(per_batch, data["tokens_per_device"], world_size=devices, longest=longest)
    parts = devices * accumulation
    # A share of a step overshoots its equal part by less than the pair that was begun last.
    return per_batch if parts == 1 else min(per_batch, per_batch / parts + longest)


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
