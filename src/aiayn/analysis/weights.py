"""Attention weights, seen from outside: hooks recompute them from each attention's inputs.

So the model keeps torch's fused kernels, which never form the weights, and no module returns more than it needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aiayn.model.attention import attention_weights
from aiayn.model.transformer import Transformer


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
def weights(model: Transformer, source: Tensor, target: Tensor) -> Weights:
    """The weights of a teacher-forced pass.

    Args:
        model: In evaluation mode.
        source: `(batch, source)`, each with EOS, padded.
        target: `(batch, target)`, from BOS on, padded. Row i is the query that predicts token i + 1.

    Raises:
        ValueError: if the model's attention is of a kind that does not show queries and keys.
    """
    found: dict[str, list[Tensor]] = {}
    with _recorded(model, found):
        model.features(source, target)
    layers = [
        torch.stack(found[kind])
        for kind in ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention")
    ]
    return Weights(*layers)


@contextmanager
def _recorded(model: Transformer, found: dict[str, list[Tensor]]) -> Iterator[None]:
    """Append to `found`, by stack and name, the weights of every attention that is called."""
    handles = []
    try:
        for stack, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder.layers)):
            for layer in layers:
                for name, module in layer.named_children():
                    if name.endswith("attention"):
                        hook = partial(_record, found.setdefault(f"{stack}.{name}", []))
                        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _record(found: list[Tensor], module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    if not hasattr(module, "project"):
        raise ValueError(f"{type(module).__name__} does not show its weights: it has no method `project`.")
    query, key, _ = module.project(*inputs)  # type: ignore[operator]
    found.append(attention_weights(query, key, mask=options.get("mask"), causal=options.get("causal", False)))
