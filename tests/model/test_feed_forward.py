import math
from collections.abc import Callable

import pytest
import torch
from conftest import composed
from torch import Tensor
from torch.nn import functional

from aiayn.model.feed_forward.geglu import GEGLU
from aiayn.model.feed_forward.gelu import GELUFeedForward
from aiayn.model.feed_forward.relu import FeedForward
from aiayn.model.feed_forward.swiglu import SwiGLU


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution's probability of less (Hendrycks and Gimpel 2016), not its tanh approximation."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def test_it_is_equation_2() -> None:
    module = FeedForward(3, 5)
    x = torch.randn(2, 7, 3)
    inner = (x @ module.inner.weight.T + module.inner.bias).clamp(min=0)
    torch.testing.assert_close(module(x), functional.linear(inner, module.outer.weight, module.outer.bias))


def test_an_illegal_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.d_ff must be at least 1, got 0"):
        FeedForward(3, 0)


def test_gelu_takes_the_place_of_relu() -> None:
    module, x = GELUFeedForward(3, 5), torch.randn(2, 7, 3)
    torch.testing.assert_close(module(x), module.outer(gelu(module.inner(x))))


@pytest.mark.parametrize(("kind", "activation"), [(GEGLU, gelu), (SwiGLU, lambda x: x * x.sigmoid())])
def test_a_gate_multiplies_what_passes(kind: type[FeedForward], activation: Callable[[Tensor], Tensor]) -> None:
    module, x = kind(3, 5), torch.randn(2, 7, 3)
    weights = dict(module.named_parameters())
    assert sorted(weights) == ["gate.weight", "inner.weight", "outer.weight"]  # no biases
    gate, inner, outer = (weights[name] for name in sorted(weights))
    torch.testing.assert_close(module(x), (activation(x @ gate.T) * (x @ inner.T)) @ outer.T)


@pytest.mark.parametrize(("d_ff", "width"), [(2048, 1368), (4096, 2728), (512, 344), (5, 8)])
@pytest.mark.parametrize("kind", ["geglu", "swiglu"])
def test_three_gated_maps_have_about_the_numbers_of_two(kind: str, d_ff: int, width: int) -> None:
    cfg = composed(f"model/feed_forward={kind}", f"model.d_ff={d_ff}")
    assert cfg.model.feed_forward.d_ff == width


@pytest.mark.parametrize("kind", [FeedForward, SwiGLU])
def test_first_weights_that_are_halved_quarter_the_output(kind: type[FeedForward]) -> None:
    module, x = kind(3, 5), torch.randn(7, 3)
    before = module(x)
    module.scale_first_weights(0.5)
    torch.testing.assert_close(module(x), before / 4)


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
