"""T5's relative positions (Raffel et al. 2020, section 2.1): a learned number for each bucket of distances."""

import math

import torch
from torch import Tensor, nn

from aiayn.model.position.relative import Relative, distances
from aiayn.model.view import View


class Bucketed(Relative):
    """Add a learned number to the scores, one for each head and bucket of distances.

    Short distances have a bucket each; longer ones share buckets that widen with the logarithm of the distance, up to
    `distance`. Where queries see both ways, half of the buckets are for each; a decoder has all of them for what is
    behind. T5's layers share the numbers of the first one, and its scores are not divided by sqrt(d_k); here every
    layer has numbers of its own, and scores are scaled as the attention says.
    """

    def __init__(self, heads: int, buckets: int, distance: int) -> None:
        super().__init__()
        if buckets < 4 or buckets % 4:
            raise ValueError(f"model.attention.relative.buckets must be a multiple of 4, got {buckets}; T5 has 32.")
        if distance <= buckets // 2:
            raise ValueError(
                f"model.attention.relative.distance must be above {buckets // 2}, half of the buckets, which are for "
                f"one distance each, got {distance}; T5 has 128."
            )
        self.distance = distance
        self.bias = nn.Parameter(torch.empty(buckets, heads))
        nn.init.xavier_uniform_(self.bias)

    def scores(self, query: Tensor, view: View) -> Tensor:
        """As `Relative`, `(heads, query, key)`."""
        rows = self.bucket(distances(view), both_ways=not (view.causal or view.past))
        return self.bias[rows].movedim(-1, 0)

    def bucket(self, distance: Tensor, *, both_ways: bool) -> Tensor:
        """The bucket of each distance, of its shape; distances are negative where the key is before the query."""
        buckets = len(self.bias) // 2 if both_ways else len(self.bias)
        exact = buckets // 2
        far = distance.abs() if both_ways else -distance.clamp(max=0)
        # Where each bucket but the first of the wider ones begins.
        growth = torch.arange(1, buckets - exact, dtype=torch.float64, device=distance.device) / (buckets - exact)
        begins = (exact * torch.exp(growth * math.log(self.distance / exact)) - 1e-6).ceil().long()
        found = torch.where(far < exact, far, exact + torch.bucketize(far, begins, right=True))
        return found + buckets * (distance > 0) if both_ways else found
