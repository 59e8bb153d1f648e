import torch
from torch.nn.functional import layer_norm

from aiayn.model.norm.post import PostNorm
from aiayn.model.norm.pre import PreNorm


def test_the_sum_is_normalised_after_the_addition() -> None:
    x = torch.randn(2, 3, 5)
    y = PostNorm(5, 0.0)(x, torch.square)
    total = x + x * x
    expected = (total - total.mean(-1, keepdim=True)) / (total.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(y, expected)


def test_the_input_of_a_sublayer_is_normalised_and_the_residual_is_not() -> None:
    x = torch.randn(2, 3, 5) * 7
    torch.testing.assert_close(PreNorm(5, 0.0)(x, torch.square), x + layer_norm(x, [5]).square())


def test_dropout_falls_on_the_sublayer_and_never_on_the_residual() -> None:
    module = PostNorm(97, 0.5).train()
    inputs = []
    module.norm.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    for training in (True, False):
        module.train(training)(torch.ones(89, 97), torch.ones_like)
    assert set(inputs[0].unique().tolist()) == {1.0, 3.0}  # the residual is always there, what survives is doubled
    assert inputs[1].eq(2).all()


def test_dropout_falls_on_the_sublayer_of_a_pre_norm_alone() -> None:
    x = PreNorm(97, 0.5).train()(torch.ones(89, 97), torch.ones_like)
    assert set(x.unique().tolist()) == {1.0, 3.0}
