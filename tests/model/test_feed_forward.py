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


def test_activations_are_dropped_in_training_alone() -> None:
    module, x = FeedForward(89, 97, activation_dropout=0.5), torch.randn(7, 89)
    inputs = []
    module.outer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    dropped, kept = module.train()(x), module.eval()(x)
    assert not dropped.equal(kept)
    hidden = functional.relu(module.inner(x))
    left = inputs[0] != 0
    assert 0.4 < (left.sum() / (hidden > 0).sum()) < 0.6
    torch.testing.assert_close(inputs[0][left], 2 * hidden[left])


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.activation_dropout must be in \[0, 1\), got 1"):
        FeedForward(3, 5, activation_dropout=1)
