"""The gated feed-forward network SwiGLU."""

from torch import Tensor
from torch.nn import functional

from aiayn.model.feed_forward.gated import GatedFeedForward


class SwiGLU(GatedFeedForward):
    """(Swish(x W) * x V) W_2, without biases (Shazeer 2020, equation 6)."""

    def hidden(self, x: Tensor) -> Tensor:
        """As of `FeedForward`."""
        return functional.silu(self.gate(x)) * self.inner(x)
