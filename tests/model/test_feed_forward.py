import pytest
import torch
from torch.nn import functional

from aiayn.model.feed_forward.relu import FeedForward


def test_it_is_equation_2() -> None:
    module = FeedForward(3, 5)
    x = torch.randn(2, 7, 3)
    inner = (x @ module.inner.weight.T + module.inner.bias).clamp(min=0)
    torch.testing.assert_close(module(x), functional.linear(inner, module.outer.weight, module.outer.bias))


def test_an_illegal_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.d_ff must be at least 1, got 0"):
        FeedForward(3, 0)
