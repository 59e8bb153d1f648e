"""N layers of the same kind, each with weights of its own: encoder and decoder differ in the layer they repeat."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn


class Stack(nn.Module):
    """Layers one after the other.

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
