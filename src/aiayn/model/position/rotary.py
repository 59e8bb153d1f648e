"""Rotary positions (Su et al. 2021, "RoFormer", section 3.2.2): queries and keys are turned by their position."""

import torch
from torch import Tensor

from aiayn.model.position.relative import Relative


class Rotary(Relative):
    """Turn pair m of a head's d_k dimensions at position p by the angle p * 10000^(-2m/d_k).

    So a score depends on positions by their distance alone. Dimension m is paired with m + d_k/2, the paper's 2m with
    2m + 1, which only permutes the rows of the projections.
    """

    def __init__(self, d_k: int) -> None:
        super().__init__()
        if d_k % 2:
            raise ValueError(
                f"model.d_k must be even for rotary positions, which turn pairs of dimensions, got {d_k}. "
                "Choose an even d_k or another model/position."
            )

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """As `Relative`; angles are float32, and so is what they turn: bfloat16 does not hold positions above 256."""
        half = x.size(-1) // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angles = positions[:, None] * rates  # (length, d_k / 2)
        sine, cosine = angles.sin(), angles.cos()
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
