"""KERPLE's logarithmic kernel (Chi et al. 2022): nothing is added at the bottom, scores fall with the distance."""

import torch
from torch import Tensor, nn

from aiayn.model.position.relative import Relative
from aiayn.model.view import View


class Kerple(Relative):
    """Subtract a * log(1 + b * distance), with a and b of each head's own, which are learnt and above 0."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.zeros(heads, 1, 1))
        self.log_b = nn.Parameter(torch.zeros(heads, 1, 1))

    def scores(self, query: Tensor, view: View) -> Tensor:
        """`(heads, query, key)`."""
        distance = (view.query_positions[:, None] - view.key_positions).abs()
        return -self.log_a.exp() * torch.log1p(self.log_b.exp() * distance)
