"""What gated feed-forward networks have in common (Shazeer 2020, "GLU Variants Improve Transformer")."""

from torch import nn

from aiayn.model.feed_forward.relu import FeedForward


class GatedFeedForward(FeedForward):
    """(act(x W) * x V) W_2, without biases: what passes, V, is multiplied by a gate, W.

    Arguments as of `FeedForward`; with three maps a `d_ff` of two thirds costs what its two do.
    """

    bias = False

    def __init__(self, d_model: int, d_ff: int, activation_dropout: float = 0.0) -> None:
        super().__init__(d_model, d_ff, activation_dropout)
        self.gate = nn.Linear(d_model, d_ff, bias=self.bias)
        self.draw(self.gate)
