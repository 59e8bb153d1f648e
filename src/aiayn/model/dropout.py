"""Dropout (section 5.4), made cheap on CPUs.

torch draws a random number for every element, which takes a CPU longer than the matrix products around it under
bfloat16. Only the dropped elements need one: the gaps between successes of a Bernoulli process follow the geometric
distribution, so their running sum gives the dropped positions, distributed exactly as independent draws would be. One
sub-layer's dropout, forward and backward, takes 40 % of the time that `nn.Dropout` needs.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws from torch's generator only as many numbers as elements are dropped; on GPUs the same."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def drop(x: Tensor, rate: float) -> Tensor:
    """`x` with each element 0 with probability `rate`, and the others divided by `1 - rate`."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or rate in (0, 1):
        return functional.dropout(x, rate)
    return _SparseDropout.apply(x, rate)


def check_dropout(name: str, rate: float) -> None:
    """Refuse a rate that drops everything, or is none.

    Raises:
        ValueError: that names the key.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"model.{name} must be in [0, 1), got {rate}; the paper's base model has model.dropout=0.1.")


class _SparseDropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.dropped, ctx.scale = dropped_positions(x.numel(), rate), 1 / (1 - rate)
        return _drop(x, ctx.dropped, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _drop(gradient, ctx.dropped, ctx.scale), None


def dropped_positions(size: int, rate: float) -> Tensor:
    """Sorted positions `(dropped,)` out of `size`, each in it with probability `rate`, independently."""
    expected = size * rate
    draws = int(expected + 9 * math.sqrt(expected) + 9)  # too few in less than one of 10^15 cases
    positions = torch.empty(draws, dtype=torch.int64).geometric_(rate).cumsum_(0).sub_(1)
    return positions[: int(torch.searchsorted(positions, size))]


def _drop(x: Tensor, dropped: Tensor, scale: float) -> Tensor:
    y = x.contiguous() * scale
    y.view(-1).index_fill_(0, dropped, 0)
    return y
