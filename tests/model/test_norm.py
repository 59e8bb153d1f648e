from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from conftest import composed
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from aiayn.checkpoints.building import build
from aiayn.model.model import Model
from aiayn.model.norm.deep import DeepNorm
from aiayn.model.norm.post import PostNorm
from aiayn.model.norm.pre import PreNorm

RMS = partial(nn.RMSNorm, 5, eps=1e-6)
DEPTHS = {"encoder_layers": 3, "decoder_layers": 2}


def built(norm: str) -> Model:
    """A small model with first weights that do not depend on the norm."""
    sizes = {"layers": 1, **DEPTHS, "d_model": 16, "d_ff": 12, "heads": 4, "kv_heads": 2}
    config: Any = composed(f"model/norm={norm}", *(f"model.{key}={size}" for key, size in sizes.items())).model
    torch.manual_seed(1)
    return build(OmegaConf.to_container(config), vocab_size=31)  # type: ignore[arg-type]


def maps(model: Model) -> Iterator[tuple[str, str, Tensor]]:
    """Weights of the linear maps: encoder or decoder, what they make, and the weights; keys and values apart."""
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "embedding" not in name:
            stack, made = name.split(".")[0], name.split(".")[-2]
            if made == "memory":  # head by head its key, then its value, of four numbers each
                key, value = weight.unflatten(0, (2, 2, 4)).unbind(1)
                yield from ((stack, "key", key), (stack, "value", value))
            else:
                yield stack, made, weight


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


def test_a_placement_takes_another_kind_of_norm() -> None:
    x = torch.randn(2, 3, 5) * 7
    for placed, expected in (
        (PostNorm(5, 0.0, kind=RMS), RMS()(x + x.square())),
        (PreNorm(5, 0.0, kind=RMS), x + RMS()(x).square()),
    ):
        torch.testing.assert_close(placed(x, torch.square), expected)
        assert [name for name, _ in placed.named_parameters()] == ["norm.weight"]  # no bias


def test_the_mean_square_of_bfloat16_is_taken_in_float32() -> None:
    # With epsilon inside of the root, so that zeros stay zeros and what is near them does not become large.
    x = (torch.randn(4, 5) * torch.tensor([1e4, 1.0, 1e-4, 0.0])[:, None]).bfloat16()
    exact = x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    found = RMS().bfloat16()(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact.bfloat16(), rtol=2**-8, atol=0)  # the last bit of bfloat16


@pytest.mark.parametrize(("norm", "ends"), [("post_rms", 0), ("pre_rms", 2)])
def test_a_model_with_rms_has_no_other_norm(norm: str, ends: int) -> None:
    model = built(norm)
    kinds = Counter(type(module) for module in model.modules())
    assert kinds[nn.LayerNorm] == 0
    assert kinds[nn.RMSNorm] == 3 * 2 + 2 * 3 + ends
    assert {module.eps for module in model.modules() if isinstance(module, nn.RMSNorm)} == {1e-6}


@pytest.mark.parametrize(
    ("encoder_layers", "decoder_layers", "values"),
    [(12, 6, (1.686, 0.418, 2.060, 0.343)), (6, 6, (1.418, 0.497, 2.060, 0.343))],
)
def test_the_constants_of_deepnorm_follow_from_the_depths(
    encoder_layers: int, decoder_layers: int, values: tuple[float, ...]
) -> None:
    depths = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    norms = [DeepNorm(5, 0.0, **depths, stack=stack) for stack in ("encoder", "decoder")]
    assert [value for norm in norms for value in (norm.alpha, norm.beta)] == pytest.approx(values, abs=5e-4)


def test_deepnorm_weighs_the_residual() -> None:
    x = torch.randn(2, 3, 5)
    norm = DeepNorm(5, 0.0, **DEPTHS, stack="encoder")
    torch.testing.assert_close(norm(x, torch.square), layer_norm(norm.alpha * x + x.square(), [5]))


def test_deepnorm_begins_with_smaller_weights_but_those_of_queries_and_keys() -> None:
    ratios: dict[tuple[str, str], set[float]] = {}
    for (stack, made, plain), (*_, deep) in zip(maps(built("post")), maps(built("deep")), strict=True):
        ratios.setdefault((stack, made), set()).update(round(ratio, 4) for ratio in (deep / plain).flatten().tolist())
    for stack in ("encoder", "decoder"):
        beta = round(DeepNorm(5, 0.0, **DEPTHS, stack=stack).beta, 4)
        found = {made: ratio for (where, made), ratio in ratios.items() if where == stack}
        unscaled = {"query": {1.0}, "key": {1.0}}
        assert found == {**unscaled, **{made: {beta} for made in ("value", "output", "inner", "outer")}}


def test_each_stack_has_its_own_constants() -> None:
    model = built("deep")
    norms = [norm for stack in (model.encoder, model.decoder) for norm in stack.modules() if isinstance(norm, DeepNorm)]
    alphas = [DeepNorm(5, 0.0, **DEPTHS, stack=stack).alpha for stack in ("encoder", "decoder")]
    assert [norm.alpha for norm in norms] == [alphas[0]] * 6 + [alphas[1]] * 6


def test_a_part_whose_weights_deepnorm_cannot_scale_is_named() -> None:
    with pytest.raises(ValueError, match=r"model/norm=deep .* Linear has no `scale_first_weights`"):
        DeepNorm(5, 0.0, **DEPTHS, stack="decoder").initialize(nn.Linear(5, 5))
