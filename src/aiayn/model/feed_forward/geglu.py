"""The gated feed-forward network GEGLU."""

from torch import Tensor
from torch.nn import functional

from aiayn.model.feed_forward.gated import GatedFeedForward


class GEGLU(GatedFeedForward):
    """(GELU(x W) * x V) W_2, without biases (Shazeer 2020, equation 6)."""

    def hidden(self, x: Tensor) -> Tensor:
        """As of `FeedForward`."""
        return functional.gelu(self.gate(x)) * self.inner(x)
