"""The layers of encoder and decoder, and the stack that repeats them (section 3.1)."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from aiayn.model.state import Cache
from aiayn.model.view import View


def applied(part: nn.Module, x: Tensor, *others: Tensor, **seen: Any) -> Tensor:
    """What a sub-layer makes of `x`.

    Raises:
        ValueError: if it is of another shape: the residual connection would broadcast it without a word.
    """
    found = part(x, *others, **seen)
    if getattr(found, "shape", None) != x.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{type(part).__name__} must make {tuple(x.shape)} of {tuple(x.shape)}, got {got}.")
    return found


def around(sublayer: nn.Module, norm: Callable[[], nn.Module]) -> nn.Module:
    """The norm and residual connection of a sub-layer; those that have `initialize` change its first weights."""
    built = norm()
    if initialize := getattr(built, "initialize", None):
        initialize(sublayer)
    return built


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each within a residual connection.

    The parts come from builders, called once for each use, that of attention with its kind: here `encoder`.
    """

    def __init__(
        self,
        *,
        attention: Callable[..., nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.self_attention = attention(kind="encoder")
        self.self_attention_norm = around(self.self_attention, norm)
        self.feed_forward = feed_forward()
        self.feed_forward_norm = around(self.feed_forward, norm)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """`(batch, source, d_model)` to `(batch, source, d_model)`."""
        x = self.self_attention_norm(x, lambda x: applied(self.self_attention, x, view=view))
        return self.feed_forward_norm(x, lambda x: applied(self.feed_forward, x, view=view))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward; else as `EncoderLayer`.

    The kinds of attention are `decoder` and `cross`.
    """

    def __init__(
        self,
        *,
        attention: Callable[..., nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.self_attention = attention(kind="decoder")
        self.self_attention_norm = around(self.self_attention, norm)
        self.cross_attention = attention(kind="cross")
        self.cross_attention_norm = around(self.cross_attention, norm)
        self.feed_forward = feed_forward()
        self.feed_forward_norm = around(self.feed_forward, norm)

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
        x = self.self_attention_norm(x, lambda x: applied(self.self_attention, x, view=own, cache=mine))
        x = self.cross_attention_norm(x, lambda x: applied(self.cross_attention, x, memory, view=across, cache=others))
        return self.feed_forward_norm(x, lambda x: applied(self.feed_forward, x, view=own))


class Stack(nn.Module):
    """N layers of the same kind one after the other, each with weights of its own.

    A layer is the unit that is compiled, and whose activations and weights may be dropped or sharded.

    Args:
        layers: N.
        layer: Builds a layer, called once for each.
        end: Builds what follows the last layer, such as the final norm of pre-norm models; None: nothing.
    """

    def __init__(
        self, layers: int, *, layer: Callable[[], nn.Module], end: Callable[[], nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.end = None if end is None else end()

    def forward(self, x: Tensor, *context: Any, caches: Sequence[Any] | None = None) -> Tensor:
        """`x` `(batch, length, d_model)` through all layers.

        Args:
            x: What the first layer reads.
            context: What every layer is given besides.
            caches: For decoding: what each layer remembers.
        """
        for number, layer in enumerate(self.layers):
            x = layer(x, *context) if caches is None else layer(x, *context, caches[number])
        return x if self.end is None else self.end(x)
