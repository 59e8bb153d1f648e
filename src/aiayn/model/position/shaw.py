"""Relative positions of Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3."""

import math

import torch
from torch import Tensor, nn

from aiayn.model.position.relative import Relative, distances
from aiayn.model.view import View


class Shaw(Relative):
    """A learned vector for each distance up to `clip` either way is added to the key, and one to the value.

    Heads share them; layers do not. Keys, vectors and all, are divided by sqrt(d_k), as in the paper's equation 5.
    """

    gathers = True

    def __init__(self, d_k: int, d_v: int, clip: int) -> None:
        super().__init__()
        if clip < 0:
            raise ValueError(f"model.attention.relative.clip must be at least 0, got {clip}; the paper has 16.")
        self.clip = clip
        self.key = nn.Parameter(torch.empty(2 * clip + 1, d_k))
        self.value = nn.Parameter(torch.empty(2 * clip + 1, d_v))
        nn.init.xavier_uniform_(self.key)
        nn.init.xavier_uniform_(self.value)

    def scores(self, query: Tensor, view: View) -> Tensor:
        """As `Relative`; the vectors are multiplied once a query, not once a pair (section 3.3)."""
        scores = query @ (self.key.T / math.sqrt(query.size(-1)))  # (batch, heads, query, 2 clip + 1)
        return scores.gather(-1, self._rows(view).expand(*scores.shape[:-1], -1))

    def values(self, weights: Tensor, view: View) -> Tensor:
        """As `Relative`; weights of equal vectors are summed first."""
        summed = weights.new_zeros(*weights.shape[:-1], len(self.value))
        return summed.scatter_add(-1, self._rows(view).expand_as(weights), weights) @ self.value

    def _rows(self, view: View) -> Tensor:
        """Which of the vectors each query and key have, `(query, key)`."""
        return distances(view).clamp(-self.clip, self.clip) + self.clip
