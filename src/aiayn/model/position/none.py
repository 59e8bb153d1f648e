"""No positions at the bottom of a stack, in the place of `SinusoidalPosition`."""

from torch import Tensor, nn


class NoPosition(nn.Module):
    """Add nothing: attention alone may know of positions, or nobody does."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """`x` as it is."""
        return x
