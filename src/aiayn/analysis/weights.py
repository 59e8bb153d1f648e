"""Attention weights, seen from outside: hooks recompute them from each attention's inputs.

So the model keeps torch's fused kernels, which never form the weights, and no module returns more than it needs.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aiayn.data.batching import Batch

# The kinds of attention in a model, and what each is called wherever it is shown.
KINDS = {"encoder": "encoder self", "decoder": "decoder self", "cross": "cross"}


@dataclass(frozen=True)
class Weights:
    """What every head of a model attends to; the last axis sums to one.

    Attributes:
        encoder: Self-attention of the encoder, `(layers, batch, heads, source, source)`.
        decoder: Self-attention of the decoder, `(layers, batch, heads, target, target)`; zero for later positions.
        cross: Attention of the decoder to the encoder's output, `(layers, batch, heads, target, source)`.
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


@torch.inference_mode()
def weights(model: Any, batch: Batch) -> Weights:
    """The weights of a teacher-forced pass.

    Args:
        model: An encoder and a decoder, in evaluation mode.
        batch: Row i of a target is the query that has read token i and predicts token i + 1.

    Raises:
        ValueError: if the model's attention is of a kind that does not show queries and keys.
    """
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    with ExitStack() as hooks:
        for kind, layers in attentions(model, "weights").items():
            for module in layers:
                record = partial(_record, found[kind])
                hooks.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        model(batch)
    return Weights(**{kind: torch.stack(layers) for kind, layers in found.items()})


def attentions(model: Any, *needed: str) -> dict[str, list[Any]]:
    """A model's attention modules by kind, as `KINDS` orders them, each kind from the first layer to the last.

    Args:
        model: Any encoder and decoder.
        needed: Attributes that each must have, as `MultiHeadAttention` has them.

    Raises:
        ValueError: if the model's attention is of a class without one of them.
    """
    if missing := [name for name in ("encoder", "decoder") if not hasattr(model, name)]:
        raise ValueError(f"{type(model).__name__} has no {missing[0]}, whose attention could be seen.")
    try:
        encoder, decoder = model.encoder.layers, model.decoder.layers
        found = {
            "encoder": [layer.self_attention for layer in encoder],
            "decoder": [layer.self_attention for layer in decoder],
            "cross": [layer.cross_attention for layer in decoder],
        }
    except AttributeError as error:
        raise ValueError(f"{type(model).__name__} shows no attention: {error}; EncoderLayer's has a name.") from error
    for module in (module for layers in found.values() for module in layers):
        if missing := [name for name in needed if not hasattr(module, name)]:
            kind = type(module).__name__
            raise ValueError(f"{kind} does not show its heads: it has no `{missing[0]}`; MultiHeadAttention has.")
    return found


def _record(found: list[Tensor], module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    found.append(module.weights(*inputs, view=options["view"]))
