"""A layer of the decoder (section 3.1): masked self-attention, attention to the encoder's output, feed-forward."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.state import Cache
from aiayn.model.view import View


class DecoderLayer(nn.Module):
    """Three sub-layers, each within a residual connection; the parts come from builders, called once for each use."""

    def __init__(
        self,
        *,
        attention: Callable[[], nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.self_attention = attention()
        self.self_attention_norm = norm()
        self.cross_attention = attention()
        self.cross_attention_norm = norm()
        self.feed_forward = feed_forward()
        self.feed_forward_norm = norm()

    def forward(
        self, x: Tensor, memory: Tensor, own: View, across: View, caches: tuple[Cache, Cache] | None = None
    ) -> Tensor:
        """All positions at once; or, with caches, one position of every beam.

        Args:
            x: `(batch, target, d_model)`, or `(batch, beam, d_model)` with caches.
            memory: The encoder's output, `(batch, source, d_model)`.
            own: What the targets see of each other.
            across: What they see of the memory.
            caches: Of self-attention and of cross-attention.

        Returns:
            As `x`.
        """
        mine, others = caches or (None, None)
        x = self.self_attention_norm(x, lambda x: self.self_attention(x, view=own, cache=mine))
        x = self.cross_attention_norm(x, lambda x: self.cross_attention(x, memory, view=across, cache=others))
        return self.feed_forward_norm(x, lambda x: self.feed_forward(x, view=own))
