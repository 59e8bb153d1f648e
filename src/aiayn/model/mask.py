"""Masks (section 3.2.3): which key a query may attend to.

Everywhere in this package tensors are batch first, and a mask is boolean with True = may attend. A mask is built only
where one is needed: attention without one takes the faster path of `scaled_dot_product_attention`. The decoder's
self-attention needs none for padding: padded target positions come last, so no real position ever sees them.
"""

from torch import Tensor


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor | None:
    """Hide the padding of a batch from every query.

    Args:
        tokens: `(batch, key)`.
        pad_id: Id of the padding token.

    Returns:
        Boolean, `(batch, 1, 1, key)`, True at real tokens; None when the batch holds no padding.
    """
    real = tokens != pad_id
    return None if bool(real.all()) else real[:, None, None, :]
