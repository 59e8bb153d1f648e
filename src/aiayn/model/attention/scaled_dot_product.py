"""Scaled dot-product attention (section 3.2.1): equation 1, by fused kernels or written out."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from aiayn.model.dropout import drop
from aiayn.model.view import View


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    view: View,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Average the values, weighted by how well their keys match the query: equation 1 (section 3.2.1).

    torch's fused kernels do it, except for two trainings on a CPU: in bfloat16, where the fused kernel's backward pass
    takes seven times as long as the formula written out, and with dropout, for which there is none.

    Args:
        query: `(batch, heads, query, d_k)`.
        key: `(batch, kv_heads, key, d_k)`.
        value: `(batch, kv_heads, key, d_v)`.
        view: Which keys each query sees.
        bias: Added to the scores, as `Relative.scores` gives it.
        dropout: Share of the weights that are dropped.
        scale: By which products of queries and keys are multiplied; None: 1/sqrt(d_k).

    Returns:
        Context, `(batch, heads, query, d_v)`.
    """
    if query.device.type == "cpu" and (dropout or (query.dtype == torch.bfloat16 and query.requires_grad)):
        weights = drop(attention_weights(query, key, view=view, bias=bias, scale=scale), dropout)
        return weights @ for_each_head(value, query.size(1))
    mask = view.mask if bias is None else _added(query, key, view=view, bias=bias)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=view.causal and bias is None,
        scale=scale,
        enable_gqa=key.size(1) != query.size(1),
    )


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    view: View,
    bias: Tensor | None = None,
    scale: float | None = None,
    score: nn.Module | None = None,
) -> Tensor:
    """How much each query attends to each key: softmax(Q K^T / sqrt(d_k)), `(batch, heads, query, key)`.

    Arguments as in `scaled_dot_product_attention`; `score` is one like `Additive`, in the place of products.
    """
    keys = for_each_head(key, query.size(1))
    if score is None:
        divisor = math.sqrt(query.size(-1)) if scale is None else 1 / scale
        scores = query @ keys.transpose(-2, -1) / divisor  # (batch, heads, query, key)
    else:
        scores = score(query, keys)
    if bias is not None:
        scores = scores + _added(query, key, view=view, bias=bias)
    elif (mask := _mask(query, key, view=view)) is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)


def _mask(query: Tensor, key: Tensor, *, view: View) -> Tensor | None:
    """What a view lets each query see, its causal part written out; None: everything."""
    if not view.causal:
        return view.mask
    return torch.ones(query.size(2), key.size(2), dtype=torch.bool, device=query.device).tril()


def _added(query: Tensor, key: Tensor, *, view: View, bias: Tensor) -> Tensor:
    """The bias, and -inf where the view lets a query see nothing."""
    mask, bias = _mask(query, key, view=view), bias.to(query.dtype)
    return bias if mask is None else bias.masked_fill(~mask, -math.inf)


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values `(batch, kv_heads, key, d)` once for each head that reads them, `(batch, heads, key, d)`."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)
