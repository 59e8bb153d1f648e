"""ALiBi (Press et al. 2022, "Train Short, Test Long"): scores fall with the distance, in each head at its own rate."""

import torch
from torch import Tensor

from aiayn.model.position.relative import Relative, distances
from aiayn.model.view import View


class Alibi(Relative):
    """Subtract slope * |distance|, with fixed slopes.

    The paper's models look back only. In an encoder the same is done both ways, as its authors suggest
    (ofirpress/attention_with_linear_biases, issue 5), so there a head does not tell left from right.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def scores(self, query: Tensor, view: View) -> Tensor:
        """As `Relative`, `(heads, query, key)`."""
        return -slopes(self.heads, query.device)[:, None, None] * distances(view).abs()


def slopes(heads: int, device: torch.device) -> Tensor:
    """2^(-8/h), 2^(-16/h), ..., 2^-8, where h heads are a power of two.

    Otherwise those of the next smaller power, and then every other one of its double
    (ofirpress/attention_with_linear_biases:fairseq/models/transformer.py: get_slopes).
    """
    power = 2 ** (heads.bit_length() - 1)
    head = torch.arange(heads, device=device)
    return 2.0 ** torch.where(head < power, -8 / power * (head + 1), -4 / power * (2 * (head - power) + 1))
