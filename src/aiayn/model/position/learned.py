"""Learned positions (Table 3, row E), in the place of `SinusoidalPosition`."""

import torch
from torch import Tensor, nn

from aiayn.model.position.sinusoidal import check_table


class LearnedPosition(nn.Module):
    """Add a learned vector for each position (Table 3, row E)."""

    def __init__(self, d_model: int, max_length: int = 1024) -> None:
        super().__init__()
        check_table(max_length, d_model)
        self.longest = max_length
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        # The paper gives no scale. This one is facebookresearch/fairseq:fairseq/modules/positional_embedding.py's;
        # tensorflow/tensor2tensor:tensor2tensor/models/common_attention.py of 2017 (add_positional_embedding_nd) has 1,
        # and later versions Glorot's. Which of them row (E) had is not known.
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add the vectors of positions `offset`, `offset + 1`, ... to `x` `(..., length, d_model)`."""
        end = offset + x.size(-2)
        if end > self.longest:
            raise ValueError(
                f"model.position.max_length={self.longest} must cover every sequence, got one of {end} tokens. "
                "Raise model.position.max_length, drop longer pairs, or use model/position=sinusoidal."
            )
        return x + self.table[offset:end]
