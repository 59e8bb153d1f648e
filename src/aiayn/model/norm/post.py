"""The residual connection around a sub-layer, and its layer normalisation (sections 3.1 and 5.4)."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.dropout import Dropout


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the paper's order, normalisation after the addition."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what `sublayer` makes of `x` `(..., d_model)`, and normalise."""
        return self.norm(x + self.dropout(sublayer(x)))
