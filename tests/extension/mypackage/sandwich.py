"""Normalisation before each sub-layer, and once more at the end of a stack (Xiong et al. 2020, table 1)."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.dropout import Dropout


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.norm = Dropout(dropout), nn.LayerNorm(d_model)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`x` `(..., d_model)` with what `sublayer` makes of it normalised."""
        return x + self.dropout(sublayer(self.norm(x)))
