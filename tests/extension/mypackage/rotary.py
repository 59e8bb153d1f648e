"""Rotary positions (Su et al. 2021, section 3.2.2): nothing is added at the bottom, queries and keys are turned."""

import torch
from torch import Tensor, nn

from aiayn.model.view import View


class Rotary(nn.Module):
    """Turn each pair of a head's dimensions by an angle that grows with the position."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys `(batch, heads, length, d_k)` at `positions` `(length,)`."""
        half = x.size(-1) // 2
        rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angles = positions[:, None] * rates  # (length, half)
        one, other = x.float().split(half, dim=-1)
        turned = [one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()]
        return torch.cat(turned, dim=-1).to(x.dtype)

    def scores(self, query: Tensor, view: View) -> Tensor | None:
        """Nothing is added."""
        return None


class Nothing(nn.Module):
    """What is added at the bottom, where attention alone knows positions."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """`x` as it is."""
        return x
