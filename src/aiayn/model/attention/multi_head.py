"""Multi-head attention (section 3.2).

An attention module is called `attention(query, memory, mask=..., cache=..., causal=...)`; any class with this signature
can take the place of `MultiHeadAttention` in the configuration. Self-attention has no memory. While decoding, the
queries are the beams of a sentence at one position, so that cross-attention reads the sentence's keys and values, which
are computed once, for all its beams.

Departure from the paper's formulas: the projections have biases.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Cache:
    """Keys and values that later decoding steps read again.

    Room grows by doubling, so that the cost of a step does not depend on how many went before.
    """

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append `key` `(batch, heads, new, d_k)`, `value` `(batch, heads, new, d_v)`; return all keys and values."""
        start, self.length = self.length, self.length + key.size(2)
        self._key = _write(self._key, key, start)
        self._value = _write(self._value, value, start)
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys `(batch, heads, length, d_k)` and values `(batch, heads, length, d_v)`."""
        assert self._key is not None
        assert self._value is not None
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def select(self, kept: int, moved: Tensor) -> None:
        """As `keep_rows`."""
        if self._key is not None and self._value is not None:
            self._key, self._value = keep_rows(self._key, kept, moved), keep_rows(self._value, kept, moved)


def _write(room: Tensor | None, new: Tensor, start: int) -> Tensor:
    """Put `new` `(batch, heads, new, d)` at `start` of `room`'s third axis, in a larger room where it does not fit."""
    end = start + new.size(2)
    if room is None or end > room.size(2):
        capacity = end if room is None else max(end, 2 * room.size(2))
        larger = new.new_empty(*new.shape[:2], capacity, new.size(3))
        if room is not None:
            larger[:, :, :start] = room[:, :, :start]
        room = larger
    room[:, :, start:end] = new
    return room


def keep_rows(x: Tensor, kept: int, moved: Tensor) -> Tensor:
    """Let rows `moved[0]` of `x` `(batch, ...)` become its rows `moved[1]`, in place, and keep the first `kept`."""
    to, source = moved
    x[to] = x[source]
    return x[:kept]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool
) -> Tensor:
    """Average the values, weighted by how well their keys match the query: equation 1 (section 3.2.1).

    torch's fused kernels do it, except for training in bfloat16 on a CPU: there the fused kernel's backward pass takes
    seven times as long as the formula written out.

    Args:
        query: `(batch, heads, query, d_k)`.
        key: `(batch, heads, key, d_k)`.
        value: `(batch, heads, key, d_v)`.
        mask: Boolean, broadcastable to `(batch, heads, query, key)`; True where attention is allowed.
        causal: Query i attends to keys 0..i only; not together with a mask.

    Returns:
        Context, `(batch, heads, query, d_v)`.
    """
    if not (query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
    return attention_weights(query, key, mask=mask, causal=causal) @ value


def attention_weights(query: Tensor, key: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """How much each query attends to each key: softmax(Q K^T / sqrt(d_k)), `(batch, heads, query, key)`.

    Args:
        query: As in `scaled_dot_product_attention`, like the others.
        key: `(batch, heads, key, d_k)`.
        mask: True where attention is allowed.
        causal: Query i attends to keys 0..i only; not together with a mask.
    """
    if causal:
        mask = torch.ones(query.size(2), key.size(2), dtype=torch.bool, device=query.device).tril()
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (batch, heads, query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)


class MultiHeadAttention(nn.Module):
    """Attend in `heads` subspaces at once: Concat(head_1, ..., head_h) W^O (section 3.2.2).

    W^Q, W^K and W^V of all heads are the rows of one matrix, in this order: self-attention is then one product.
    """

    def __init__(self, d_model: int, heads: int, *, d_k: int, d_v: int) -> None:
        super().__init__()
        for name, size in {"d_model": d_model, "heads": heads, "d_k": d_k, "d_v": d_v}.items():
            if size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}. Give a positive whole number.")
        self.heads = heads
        self.widths = [heads * d_k, heads * d_k, heads * d_v]
        self.projection = nn.Linear(d_model, sum(self.widths))
        self.output = nn.Linear(heads * d_v, d_model)
        # Glorot over the three stacked, a smaller bound than over each: after 400 steps on the embedded corpus 0.90
        # nats, not 1.50. The paper's code stacks all three in self-attention only, and keys and values in attention to
        # a memory (tensorflow/tensor2tensor:tensor2tensor/models/common_attention.py of 2017: multihead_attention).
        # facebookresearch/fairseq:fairseq/modules/multihead_attention.py (reset_parameters) has our bound in both.
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.projection.bias)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Let every query gather what it needs from the memory.

        Args:
            query: `(batch, query, d_model)`.
            memory: `(batch, key, d_model)`; None for self-attention.
            mask: Boolean, broadcastable to `(batch, heads, query, key)`; True where attention is allowed.
            cache: For decoding. Self-attention appends its keys and values and attends to all; attention to a memory
                projects the memory at the first call only.
            causal: Query i attends to keys 0..i only; not together with a mask.

        Returns:
            `(batch, query, d_model)`.
        """
        query, key, value = self.project(query, memory, cache)
        context = scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
        return self.output(context.transpose(1, 2).flatten(2))  # (batch, query, d_model)

    def project(
        self, query: Tensor, memory: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys `(batch, heads, ..., d_k)`, and values, of all heads; arguments as in `forward`."""
        if memory is None:
            query, key, value = map(self._split_heads, self.projection(query).split(self.widths, dim=-1))
            return query, *(cache.extend(key, value) if cache is not None else (key, value))
        split = [self.widths[0], sum(self.widths[1:])]
        query_weight, memory_weight = self.projection.weight.split(split)
        query_bias, memory_bias = self.projection.bias.split(split)
        query = self._split_heads(functional.linear(query, query_weight, query_bias))
        if cache is not None and cache.length:
            return query, *cache.read()
        projected = functional.linear(memory, memory_weight, memory_bias)
        key, value = map(self._split_heads, projected.split(self.widths[1:], dim=-1))
        return query, *(cache.extend(key, value) if cache is not None else (key, value))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, d_k or d_v)
