"""The feed-forward network with GELU in the place of ReLU."""

from torch import Tensor
from torch.nn import functional

from aiayn.model.feed_forward.relu import FeedForward


class GELUFeedForward(FeedForward):
    """GELU(x W_1 + b_1) W_2 + b_2 (Hendrycks and Gimpel 2016); not its approximation by tanh."""

    def hidden(self, x: Tensor) -> Tensor:
        """As of `FeedForward`."""
        return functional.gelu(self.inner(x))
