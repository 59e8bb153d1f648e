"""What training a config will cost on an accelerator, or which rule it breaks; from the config alone.

Hours are the floating-point operations of the matrix products over an assumed share of the accelerator's peak.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from aiayn.cost.counting import Sizes, parameters, training_flops, training_memory

GIB = 2**30
PARTS = {  # the classes that cost.py counts ...
    "attention": {"aiayn.model.attention.multi_head.MultiHeadAttention"},
    "feed_forward": {"aiayn.model.feed_forward.relu.FeedForward"},
    "norm": {"aiayn.model.norm.post.PostNorm"},
    "position": {
        "aiayn.model.position.sinusoidal.SinusoidalPosition",
        "aiayn.model.position.learned.LearnedPosition",
    },
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
    paper_flops: float | None = None  # counted as ours are
    paper_seconds_x_devices_x_rate: float | None = None  # as Table 2 has them
    tokens: int | None = None  # of each side, repetitions counted, at most
    memory_bytes: float | None = None  # of one device
    hours: float | None = None
    refused: str | None = None  # the rule
    uncounted: str | None = None  # parts of the model that the formulas do not know


def estimate(config: Mapping[str, Any], name: str, assumptions: Assumptions) -> Plan:
    """What a row will cost.

    Raises:
        ValueError: if it cannot run.
    """
    model, data, steps = config["model"], config["data"], config["training"]["max_steps"]
    sizes = Sizes.of(model, vocab_size=data["vocab_size"])
    for key, size in asdict(sizes).items():
        if size < 1 and key != "learned_positions":
            group = "data" if key == "vocab_size" else "model"
            raise ValueError(f"{group}.{key} must be at least 1, got {size}. Give a positive whole number.")
    sizes = replace(sizes, learned_positions=learned_positions(model, data))
    tokens = micro_batch_tokens(data, assumptions.devices)
    precision = chosen_precision(config["trainer"]["precision"], assumptions)
    row = Plan(
        name,
        sizes=asdict(sizes),
        precision=precision,
        paper_parameters=config["paper"].get("parameters"),
        paper_flops=config["paper"].get("counted_flops"),
        paper_seconds_x_devices_x_rate=config["paper"].get("flops"),
        tokens=steps * data["tokens_per_batch"],
        uncounted=", ".join(uncounted(model)) or None,
    )
    if row.uncounted:
        return row
    row.parameters = parameters(sizes)
    row.flops_per_step = training_flops(
        sizes,
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
        sizes,
        dropout=model["dropout"],
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
    """Tokens of each side that a device holds at a time, at most.

    Raises:
        ValueError: if the longest pair may not fit.
    """
    from aiayn.data.batching import accumulation_steps  # with torch

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


def uncounted(model: Mapping[str, Any]) -> list[str]:
    """The parts that the formulas do not know: of another class, with other options, or of other sizes."""
    found = []
    for part, targets in PARTS.items():
        node = model[part]
        differs = any(model.get(key) != value for key, value in node.items() if key not in OTHER_KEYS)
        if node["_target_"] not in targets or differs:
            found.append(f"model.{part}={node['_target_']}")
    return found
