"""The residual connection around a sub-layer whose input is normalised."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.dropout import Dropout


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))): nothing but additions leads from the top of a stack to its bottom.

    So the stack needs a norm at its end (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture";
    tensor2tensor's default since October 2017, tensorflow/tensor2tensor:tensor2tensor/models/transformer.py).
    Arguments as of `PostNorm`.
    """

    def __init__(self, d_model: int, dropout: float, kind: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(d_model) if kind is None else kind()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what `sublayer` makes of the normalised `x` `(..., d_model)`."""
        return x + self.dropout(sublayer(self.norm(x)))
