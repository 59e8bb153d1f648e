"""The residual connection around a sub-layer, and its layer normalisation (sections 3.1 and 5.4)."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.dropout import Dropout


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the paper's order, normalisation after the addition.

    Args:
        d_model: Width of `x`.
        dropout: Share of the sub-layer's output that is dropped in training.
        kind: Builds what normalises; None: the paper's LayerNorm.
    """

    def __init__(self, d_model: int, dropout: float, kind: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(d_model) if kind is None else kind()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what `sublayer` makes of `x` `(..., d_model)`, and normalise."""
        return self.norm(x + self.dropout(sublayer(x)))
