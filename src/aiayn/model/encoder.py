"""A layer of the encoder (section 3.1): self-attention, then the feed-forward network."""

from collections.abc import Callable

from torch import Tensor, nn

from aiayn.model.view import View


class EncoderLayer(nn.Module):
    """Two sub-layers, each within a residual connection; the parts come from builders, called once for each use."""

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
        self.feed_forward = feed_forward()
        self.feed_forward_norm = norm()

    def forward(self, x: Tensor, view: View) -> Tensor:
        """`(batch, source, d_model)` to `(batch, source, d_model)`."""
        x = self.self_attention_norm(x, lambda x: self.self_attention(x, view=view))
        return self.feed_forward_norm(x, lambda x: self.feed_forward(x, view=view))
