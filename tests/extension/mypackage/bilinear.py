"""The gated feed-forward network without an activation (Shazeer 2020, equation 6)."""

from torch import Tensor, nn

from aiayn.model.view import View


class Bilinear(nn.Module):
    """(x W * x V) W_2, without biases."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate, self.inner, self.outer = (
            nn.Linear(*sizes, bias=False) for sizes in ((d_model, d_ff), (d_model, d_ff), (d_ff, d_model))
        )

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        """`(..., d_model)` to `(..., d_model)`."""
        return self.outer(self.gate(x) * self.inner(x))
