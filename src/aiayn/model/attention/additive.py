"""Additive attention (section 3.2.1, after Bahdanau et al. 2015), inside multi-head attention."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Elements of the hidden layer that exist at a time. What the caches of a CPU hold took half the time; on a GPU 256 MiB.
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}


class Additive(nn.Module):
    """Score a key by a network with one hidden layer, v . tanh(q + k), in the place of q . k / sqrt(d_k).

    The hidden layer of n queries and keys has n * n * d_k elements in each head. So it is computed for some queries at
    a time, and again in the backward pass.
    """

    def __init__(self, heads: int, d_k: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, d_k))
        nn.init.uniform_(self.vector, -(d_k**-0.5), d_k**-0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores `(batch, heads, query, key)` of `query` and `key`, both `(batch, heads, length, d_k)`."""
        most = CHUNK_ELEMENTS.get(query.device.type, CHUNK_ELEMENTS["cuda"])
        chunks = query.split(max(1, most // (query[:, :, 0].numel() * key.size(2))), dim=2)
        scores = [checkpoint(self._scores, one, key, use_reentrant=False, preserve_rng_state=False) for one in chunks]
        return torch.cat(scores, dim=2)

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = (query[:, :, :, None] + key[:, :, None]).tanh_()  # (batch, heads, query, key, d_k)
        return (hidden @ self.vector[:, None, :, None]).squeeze(-1)
