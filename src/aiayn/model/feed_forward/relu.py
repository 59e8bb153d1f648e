"""The position-wise feed-forward network (section 3.3)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from aiayn.model.dropout import Dropout, check_dropout
from aiayn.model.view import View


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, the same at every position (equation 2).

    Args:
        d_model: Width of input and output.
        d_ff: Width in between.
        activation_dropout: Share of the activations in between that are dropped in training; the paper drops none.
    """

    bias = True  # the maps have b_1 and b_2

    def __init__(self, d_model: int, d_ff: int, activation_dropout: float = 0.0) -> None:
        super().__init__()
        check_dropout("activation_dropout", activation_dropout)
        for name, size in {"d_model": d_model, "d_ff": d_ff}.items():
            if size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}. Give a positive whole number.")
        self.dropout = Dropout(activation_dropout)
        self.inner = nn.Linear(d_model, d_ff, bias=self.bias)
        self.outer = nn.Linear(d_ff, d_model, bias=self.bias)
        self.draw(self.inner, self.outer)

    def draw(self, *maps: nn.Linear) -> None:
        """Draw the first weights of linear maps (Glorot); their biases begin at 0."""
        for linear in maps:
            nn.init.xavier_uniform_(linear.weight)
            if self.bias:
                nn.init.zeros_(linear.bias)

    def scale_first_weights(self, factor: float) -> None:
        """Begin with weights so many times as large; `model/norm=deep` calls it."""
        with torch.no_grad():
            self.inner.weight.mul_(factor)
            self.outer.weight.mul_(factor)

    def hidden(self, x: Tensor) -> Tensor:
        """What is in between, `(rows, d_model)` to `(rows, d_ff)`."""
        return functional.relu(self.inner(x), inplace=True)

    def forward(self, x: Tensor, *, view: View | None = None) -> Tensor:
        """`(..., d_model)` to `(..., d_model)`; what a position sees does not matter here."""
        # Two dimensions: a linear map of more returns a view, and autograd copies a view that changes in place
        # (a tenth of a training step on a CPU).
        return self.outer(self.dropout(self.hidden(x.flatten(0, -2)))).view_as(x)
