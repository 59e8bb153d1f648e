"""Multi-head attention (section 3.2).

An attention module is called `attention(query, memory, view=..., cache=...)`; any class with this signature can take
the place of `MultiHeadAttention` in the configuration. Self-attention has no memory. While decoding, the queries are
the beams of a sentence at one position, so that cross-attention reads the sentence's keys and values, which are
computed once, for all its beams.

Departure from the paper's formulas: the projections have biases.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from aiayn.model.attention.restricted import banded, in_blocks
from aiayn.model.attention.scaled_dot_product import (
    attention_weights,
    for_each_head,
    scaled_dot_product_attention,
)
from aiayn.model.dropout import check_dropout, drop
from aiayn.model.position.relative import Relative
from aiayn.model.state import Cache
from aiayn.model.view import View


class MultiHeadAttention(nn.Module):
    """Attend in `heads` subspaces at once: Concat(head_1, ..., head_h) W^O (section 3.2.2).

    There are two maps into the heads: W^Q of all heads, and W^K and W^V, head by head its key, then its value. So a
    slice of rows is a slice of heads. Where `kv_heads` is less than `heads`, consecutive heads share keys and values
    (Ainslie et al. 2023, "GQA"; one alone: Shazeer 2019, "Fast Transformer Decoding").

    Args:
        d_model: Width of queries, memory and output.
        heads: That ask.
        kind: `encoder` or `decoder`, whose self-attention it is, or `cross`, to a memory.
        d_k: Width of a key.
        d_v: Width of a value.
        kv_heads: That are asked; None: as many as `heads`.
        encoder_kv_heads: That are asked where `kind` is `encoder`; None: `kv_heads`. Likewise the next two.
        decoder_kv_heads: In the decoder's self-attention.
        cross_kv_heads: In attention to a memory.
        relative: Builds a `Relative` for self-attention; None: attention knows no positions.
        score: Builds what scores keys, such as `Additive`; None: products of queries and keys do.
        scale: By which products are multiplied; None: 1/sqrt(d_k).
        qk_norm: Builds a norm of d_k numbers, one for queries and one for keys; None: they are as projected.
        window: Keys on each side that a query of self-attention sees; None: all of them.
        attention_dropout: Share of the weights that are dropped in training; the paper drops none.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kind: str = "encoder",
        d_k: int,
        d_v: int,
        kv_heads: int | None = None,
        encoder_kv_heads: int | None = None,
        decoder_kv_heads: int | None = None,
        cross_kv_heads: int | None = None,
        relative: Callable[[], Relative] | None = None,
        score: Callable[[], nn.Module] | None = None,
        scale: float | None = None,
        qk_norm: Callable[[], nn.Module] | None = None,
        window: int | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        own = {"encoder": encoder_kv_heads, "decoder": decoder_kv_heads, "cross": cross_kv_heads}[kind]
        key_heads = "kv_heads" if own is None else f"{kind}_kv_heads"
        kv_heads = own if own is not None else heads if kv_heads is None else kv_heads
        sizes = {"d_model": d_model, "heads": heads, key_heads: kv_heads, "d_k": d_k, "d_v": d_v}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}. Give a positive whole number.")
        if heads % kv_heads:
            raise ValueError(
                f"model.{key_heads} must divide model.heads, got {key_heads}={kv_heads}, heads={heads}; "
                f"choose another number, or leave it out for one of each."
            )
        if score is not None and (relative is not None or scale is not None):
            of_products = "scale" if relative is None else "relative"
            raise ValueError(
                f"model.attention.{of_products} is of products of queries and keys, and "
                "model.attention.score takes their place; leave one of the two out."
            )
        if window is not None and window < 1:
            raise ValueError(f"model.attention.window must be at least 1, got {window}. Give a positive whole number.")
        check_dropout("attention_dropout", attention_dropout)
        self.heads, self.kv_heads, self.d_k, self.d_v = heads, kv_heads, d_k, d_v
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(d_model, heads * d_k)
        self.memory = nn.Linear(d_model, kv_heads * (d_k + d_v))
        self.output = nn.Linear(heads * d_v, d_model)
        self.query_norm = None if qk_norm is None else qk_norm()
        self.key_norm = None if qk_norm is None else qk_norm()
        self.window = window if kind != "cross" else None
        self.scale, self.score = scale, None if score is None else score()
        self.relative = relative() if relative is not None and kind != "cross" else None
        # Glorot over the three stacked, a smaller bound than over each: after 400 steps on the embedded corpus 0.90
        # nats, not 1.50. The paper's code stacks all three in self-attention only, and keys and values in attention to
        # a memory (tensorflow/tensor2tensor:tensor2tensor/models/common_attention.py of 2017: multihead_attention).
        # facebookresearch/fairseq:fairseq/modules/multihead_attention.py (reset_parameters) has our bound in both.
        bound = math.sqrt(6 / (d_model + self.query.out_features + self.memory.out_features))
        nn.init.uniform_(self.query.weight, -bound, bound)
        nn.init.uniform_(self.memory.weight, -bound, bound)
        nn.init.xavier_uniform_(self.output.weight)
        for linear in (self.query, self.memory, self.output):
            nn.init.zeros_(linear.bias)

    def scale_first_weights(self, factor: float) -> None:
        """Begin with values and outputs so many times as large, not queries and keys; `model/norm=deep` calls it."""
        with torch.no_grad():
            self.memory.weight.unflatten(0, (self.kv_heads, -1))[:, self.d_k :].mul_(factor)
            self.output.weight.mul_(factor)

    def forward(self, query: Tensor, memory: Tensor | None = None, *, view: View, cache: Cache | None = None) -> Tensor:
        """Let every query gather what it needs from the memory.

        Args:
            query: `(batch, query, d_model)`.
            memory: `(batch, key, d_model)`; None for self-attention.
            view: Which keys each query sees, and where they stand.
            cache: For decoding. Self-attention appends its keys and values and attends to all; attention to a memory
                projects the memory at the first call only.

        Returns:
            `(batch, query, d_model)`.
        """
        projected, key, value = self.project(query, memory, view=view, cache=cache)
        if self.window is None:
            context = self._attend(projected, key, value, view)
        elif cache is None:
            context = in_blocks(self._attend, projected, key, value, view=view, window=self.window)
        else:
            context = self._attend(projected, key, value, view.of_last(key.size(2)))
        return self.output(context.transpose(1, 2).flatten(2))  # (batch, query, d_model)

    def weights(self, query: Tensor, memory: Tensor | None = None, *, view: View) -> Tensor:
        """How much each head attends to what, `(batch, heads, query, key)`; arguments as in `forward`."""
        projected, key, _ = self.project(query, memory, view=view)
        return self._weights(projected, key, view if self.window is None else banded(view, self.window))

    def project(
        self, query: Tensor, memory: Tensor | None = None, *, view: View, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `(batch, heads, query, d_k)`, keys and values `(batch, kv_heads, ...)`, as they are scored."""
        projected = self._split_heads(self.query(query), self.heads)
        projected = self._placed(projected, self.query_norm, view.query_positions)
        if memory is not None and cache is not None and cache.length:
            return projected, *cache.read()
        both = self._split_heads(self.memory(query if memory is None else memory), self.kv_heads)
        key, value = both.split([self.d_k, self.d_v], dim=-1)
        # What self-attention adds to a cache stands where its queries do.
        key = self._placed(key, self.key_norm, view.query_positions if memory is None else view.key_positions)
        if cache is None:
            return projected, key, value
        kept = cache.extend(key, value)
        return projected, *(kept if self.window is None else cache.keep_last(self.window + 1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, view: View) -> Tensor:
        """Context `(batch, heads, query, d_v)`; arguments as `project` gives them."""
        dropout, relative = self.attention_dropout if self.training else 0.0, self.relative
        gathers = relative is not None and relative.gathers
        if self.score is None and not gathers:
            bias = self._bias(query, view)
            return scaled_dot_product_attention(
                query, key, value, view=view, bias=bias, dropout=dropout, scale=self.scale
            )
        weights = drop(self._weights(query, key, view), dropout)
        context = weights @ for_each_head(value, self.heads)
        return context + relative.values(weights, view) if relative is not None and gathers else context

    def _weights(self, query: Tensor, key: Tensor, view: View) -> Tensor:
        bias = self._bias(query, view)
        return attention_weights(query, key, view=view, bias=bias, scale=self.scale, score=self.score)

    def _placed(self, x: Tensor, norm: nn.Module | None, positions: Tensor) -> Tensor:
        if norm is not None:
            x = norm(x.float()).to(x.dtype)  # the mean square in float32, also where x is in bfloat16
        return x if self.relative is None else self.relative.rotate(x, positions)

    def _bias(self, query: Tensor, view: View) -> Tensor | None:
        return None if self.relative is None else self.relative.scores(query, view)

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, length, width of a head)
