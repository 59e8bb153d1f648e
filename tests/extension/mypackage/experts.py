"""A mixture of experts with one expert for each token (Fedus et al. 2022, Switch Transformer, section 2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from aiayn.model.view import View


class Experts(nn.Module):
    """Feed-forward networks, of which a router chooses one for each token; all are computed, which is small enough."""

    def __init__(self, d_model: int, d_ff: int, experts: int, balance: float) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, experts, bias=False)
        self.inner = nn.Parameter(torch.randn(experts, d_model, d_ff) * d_model**-0.5)
        self.outer = nn.Parameter(torch.randn(experts, d_ff, d_model) * d_ff**-0.5)
        self.balance = balance

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        """`(batch, length, d_model)` to the same; adds the loss `balance` (equation 4) of real tokens."""
        shares = self.router(x).float().softmax(-1)  # (batch, length, experts)
        chosen = functional.one_hot(shares.argmax(-1), shares.size(-1))
        real = torch.ones_like(shares[..., 0]) if view.real is None else view.real.to(shares.dtype)
        count = real.sum().clamp(min=1)
        means = [(values * real[..., None]).sum((0, 1)) / count for values in (shares, chosen)]
        view.add_loss("balance", self.balance * count * shares.size(-1) * (means[0] * means[1]).sum())
        hidden = torch.einsum("bld,edf->blef", x, self.inner).relu()
        return torch.einsum("blef,efd,ble->bld", hidden, self.outer, (shares * chosen).to(x.dtype))
