"""Restricted self-attention (section 4): a query sees a window of neighbours, in time and memory O(r n d).

The sequence is cut into blocks as long as the window, r. The queries of a block see no key beyond the block before and
the block after, so that each block attends to three, or to two where nothing later is seen. There is no n x n matrix.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from aiayn.model.view import View


def in_blocks(
    attend: Callable[[Tensor, Tensor, Tensor, View], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    view: View,
    window: int,
) -> Tensor:
    """Attend to neighbours only.

    Args:
        attend: What gives the context from queries, keys, values and a view. Here blocks are its batch, and positions
            count from the first key that a block sees, so it may ask for nothing but distances.
        query: `(batch, heads, length, d_k)`.
        key: `(batch, kv_heads, length, d_k)`.
        value: `(batch, kv_heads, length, d_v)`.
        view: Of the whole sequence; its mask, if any, is the same for all queries.
        window: r, keys that a query sees on each side, besides its own position.

    Returns:
        Context, `(batch, heads, length, d_v)`.
    """
    length = query.size(2)
    if length <= window + 1:  # everybody sees everybody
        return attend(query, key, value, view)
    blocks, span = math.ceil(length / window), (2 if view.causal else 3) * window
    end = blocks * window - length

    def spans(x: Tensor) -> Tensor:
        """`(batch, heads, length, d)` to what each block sees, `(batch * blocks, heads, span, d)`."""
        around = pad(x, (0, 0, window, end + span - 2 * window)).unfold(2, span, window)
        return around.permute(0, 2, 1, 4, 3).flatten(0, 1)

    place = torch.arange(span, device=query.device)
    here = place[window : 2 * window]
    distance = place - here[:, None]
    near = (distance <= 0 if view.causal else distance <= window) & (distance >= -window)
    seen = torch.ones(length, dtype=torch.bool, device=query.device) if view.mask is None else view.mask
    real = spans(seen.expand(len(query), 1, 1, length).transpose(2, 3)).transpose(2, 3)  # (batch * blocks, 1, 1, span)
    # Each query sees itself, also padding: among nothing but padding there would be nothing to take a mean of.
    mask = (near & real) | (distance == 0)
    own = View(here, place, mask=mask, past=view.causal or view.past, auxiliary=view.auxiliary)
    asked = pad(query, (0, 0, 0, end)).unflatten(2, (blocks, window)).transpose(1, 2).flatten(0, 1)
    context = attend(asked, spans(key), spans(value), own)  # (batch * blocks, heads, window, d_v)
    return context.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def banded(view: View, window: int) -> View:
    """A view of the same window with a mask of all queries and keys, for those who want to look at all weights."""
    distance = view.key_positions - view.query_positions[:, None]
    near = (distance <= 0 if view.causal else distance <= window) & (distance >= -window)
    mask = near if view.mask is None else near & view.mask
    return replace(view, mask=mask | (distance == 0), causal=False, past=view.causal or view.past)
