"""What self-attention may know of positions, besides what was added at the bottom of a stack.

Such a part is given to self-attention alone: positions of two different sequences have no distance.
"""

from torch import Tensor, nn

from aiayn.model.view import View


class Relative(nn.Module):
    """A part of attention, given by YAML; this one changes nothing. What it adds may depend on distances alone.

    Attributes:
        gathers: Whether it has `values`, for which the weights have to be formed.
    """

    gathers = False

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys `(batch, heads, length, d_k)` as they are scored, from their `positions` `(length,)`."""
        return x

    def scores(self, query: Tensor, view: View) -> Tensor | None:
        """What is added to the scores, broadcastable to `(batch, heads, query, key)`; None: nothing."""
        return None

    def values(self, weights: Tensor, view: View) -> Tensor:
        """What is added to the context, `(batch, heads, query, d_v)`, from `weights` `(batch, heads, query, key)`."""
        raise NotImplementedError


def distances(view: View) -> Tensor:
    """How far behind its query each key stands, negative before it, `(query, key)`."""
    return view.key_positions - view.query_positions[:, None]
