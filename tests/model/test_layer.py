from functools import partial

import torch
from conftest import view

from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.feed_forward.relu import FeedForward
from aiayn.model.layer import EncoderLayer
from aiayn.model.norm.post import PostNorm


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
