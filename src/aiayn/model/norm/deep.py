"""A residual connection that weighs what passes, for stacks of hundreds of layers (Wang et al. 2022, "DeepNet")."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from aiayn.model.norm.post import PostNorm


class DeepNorm(PostNorm):
    """LayerNorm(alpha x + Dropout(Sublayer(x))), around sub-layers whose first weights are smaller by beta.

    Both constants follow from the depths of encoder and decoder (figure 2 of that paper;
    microsoft/torchscale:torchscale/architecture/encoder.py and decoder.py).

    Args:
        d_model: Width of `x`.
        dropout: As of `PostNorm`, likewise `kind`.
        encoder_layers: N.
        decoder_layers: M.
        stack: Which of them this is of.
        kind: As of `PostNorm`.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float,
        *,
        encoder_layers: int,
        decoder_layers: int,
        stack: Literal["encoder", "decoder"],
        kind: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(d_model, dropout, kind)
        if stack == "encoder":
            depth = (encoder_layers**4 * decoder_layers) ** (1 / 16)
            self.alpha, self.beta = 0.81 * depth, 0.87 / depth
        else:
            self.alpha, self.beta = (3 * decoder_layers) ** (1 / 4), (12 * decoder_layers) ** (-1 / 4)

    def initialize(self, sublayer: nn.Module) -> None:
        """Scale the first weights of the sub-layer that this is around: of W_1, W_2, W^V and W^O, not of W^Q and W^K.

        Raises:
            ValueError: if the sub-layer does not know which these are.
        """
        if (scale := getattr(sublayer, "scale_first_weights", None)) is None:
            raise ValueError(
                "model/norm=deep needs sub-layers that begin with smaller weights, and "
                f"{type(sublayer).__name__} has no `scale_first_weights`; add it, or choose another model/norm."
            )
        scale(self.beta)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what `sublayer` makes of `x` `(..., d_model)` to alpha times `x`, and normalise."""
        return self.norm(self.alpha * x + self.dropout(sublayer(x)))
