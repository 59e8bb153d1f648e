"""What a query may see, and where things stand (section 3.2.3).

A model makes views once for each forward pass or decoding step, and hands them to every layer; so an attention of one's
own knows true positions, also where beams share a cache, and a router knows what is padding.

Everywhere in this package tensors are batch first, and a mask is boolean with True = may attend. A mask is built only
where one is needed: attention without one takes the faster path of `scaled_dot_product_attention`. The decoder's
self-attention needs none for padding: padded target positions come last, so no real position ever sees them.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True)
class View:
    """What the queries of one attention see.

    Attributes:
        query_positions: Where each query stands in its sequence, `(query,)`. While decoding the queries are the beams
            of a sentence, all at one position.
        key_positions: The same of the keys, `(key,)`; while decoding of each slot of the cache, of which several stand
            at one position.
        mask: Boolean, broadcastable to `(batch, heads, query, key)`; None: every query sees all keys.
        causal: Query i sees keys 0..i only; not together with a mask.
        past: Whether the mask hides all that stands after a query, as `causal` does.
        real: Boolean, `(batch, query)`, True at queries that are not padding; None: all of them are real.
        auxiliary: Losses that parts of the model have added in this pass, by name; shared by all of its views.
    """

    query_positions: Tensor
    key_positions: Tensor
    mask: Tensor | None = None
    causal: bool = False
    past: bool = False
    real: Tensor | None = None
    auxiliary: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.causal and self.mask is not None:
            raise ValueError("a view is causal or has a mask, got both; put the triangle into the mask.")

    def of_last(self, keys: int) -> "View":
        """A view of the last keys alone, of which there may be as many as before."""
        mask = None if self.mask is None else self.mask[..., -keys:]
        return replace(self, key_positions=self.key_positions[-keys:], mask=mask)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Add to a named loss of this pass, which training adds to its own.

        Args:
            name: As the log shows it: `train/NAME`.
            value: A scalar, summed over real tokens, times its coefficient: it is divided as the loss is, by the number
                of target tokens of the step.
        """
        self.auxiliary[name] = self.auxiliary[name] + value if name in self.auxiliary else value
