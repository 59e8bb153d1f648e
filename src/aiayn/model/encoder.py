"""The encoder stack (section 3.1): self-attention, then the feed-forward network, in each of N layers."""

from collections.abc import Callable

from torch import Tensor, nn


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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`x` `(batch, source, d_model)`, `mask` as `padding_mask` gives it; returns `(batch, source, d_model)`."""
        x = self.self_attention_norm(x, lambda x: self.self_attention(x, mask=mask))
        return self.feed_forward_norm(x, self.feed_forward)


class Encoder(nn.Module):
    """N layers of the same kind, each with weights of its own."""

    def __init__(
        self,
        layers: int,
        *,
        attention: Callable[[], nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(attention=attention, feed_forward=feed_forward, norm=norm) for _ in range(layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`x` `(batch, source, d_model)`, `mask` as `padding_mask` gives it; returns `(batch, source, d_model)`."""
        for layer in self.layers:
            x = layer(x, mask)
        return x
