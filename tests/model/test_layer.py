from functools import partial

import pytest
import torch
from conftest import view
from torch import Tensor

from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.feed_forward.relu import FeedForward
from aiayn.model.layer import EncoderLayer
from aiayn.model.norm.post import PostNorm
from aiayn.model.view import View


def test_a_layer_is_attention_then_feed_forward_each_normalised_after_its_residual() -> None:
    layer = EncoderLayer(
        attention=partial(MultiHeadAttention, 6, 2, d_k=5, d_v=7),
        feed_forward=partial(FeedForward, 6, 11),
        norm=partial(PostNorm, 6, 0.0),
    )
    x, seen = torch.randn(2, 3, 6), view(3)
    parts = dict(layer.named_modules())
    attended = parts["self_attention_norm.norm"](x + layer.self_attention(x, view=seen))
    expected = parts["feed_forward_norm.norm"](attended + layer.feed_forward(attended))
    torch.testing.assert_close(layer(x, seen), expected)


class Summed(FeedForward):
    """A network that gives one vector for a whole sentence."""

    def forward(self, x: Tensor, *, view: View | None = None) -> Tensor:
        return super().forward(x).sum(1, keepdim=True)


def test_a_part_of_another_shape_is_refused_and_not_broadcast() -> None:
    layer = EncoderLayer(
        attention=partial(MultiHeadAttention, 6, 2, d_k=5, d_v=7),
        feed_forward=partial(Summed, 6, 11),
        norm=partial(PostNorm, 6, 0.0),
    )
    with pytest.raises(ValueError, match=r"Summed must make \(2, 3, 6\) of \(2, 3, 6\), got \(2, 1, 6\)"):
        layer(torch.randn(2, 3, 6), view(3))
