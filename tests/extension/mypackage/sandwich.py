"""Norms before each sub-layer and behind it, and one at the end of a stack (Ding et al. 2021, CogView)."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.dropout import Dropout


class SandwichNorm(nn.Module):
    """x + LayerNorm(Dropout(Sublayer(LayerNorm(x))))."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.before, self.behind = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`x` `(..., d_model)` with what `sublayer` makes of it normalised."""
        return x + self.behind(self.dropout(sublayer(self.before(x))))
