"""Attention that prefers what is near, after ALiBi (Press et al. 2022, section 3), with slopes that are learnt."""

import math

import torch
from torch import Tensor, nn

from aiayn.model.state import Cache
from aiayn.model.view import View


class DistanceAttention(nn.Module):
    """Scores fall with the distance between query and key, in each head at its own rate."""

    def __init__(self, d_model: int, heads: int, *, kind: str) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.memory = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)
        # Positions of two sequences have no distance.
        self.slopes = None if kind == "cross" else nn.Parameter(torch.full((heads, 1, 1), 0.3))

    def forward(self, query: Tensor, memory: Tensor | None = None, *, view: View, cache: Cache | None = None) -> Tensor:
        """`(batch, query, d_model)` to `(batch, query, d_model)`."""
        asked = self.query(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if memory is not None and cache is not None and cache.length:
            key, value = cache.read()
        else:
            known = self.memory(query if memory is None else memory).unflatten(-1, (self.heads, -1))
            key, value = known.transpose(1, 2).chunk(2, dim=-1)
            if cache is not None:
                key, value = cache.extend(key, value)
        distance = view.query_positions[:, None] - view.key_positions
        scores = asked @ key.transpose(-2, -1) / math.sqrt(asked.size(-1))
        if self.slopes is not None:
            scores = scores - self.slopes * distance.abs()
        allowed = distance >= 0 if view.causal else view.mask
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        return self.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
