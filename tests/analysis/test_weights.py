"""Attention weights recomputed by hooks: they are what the model's own modules average the values with."""

import pytest
import torch
from conftest import pairs

from aiayn.analysis.weights import attentions, weights

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10, 3], [11, 12, 13, 3, 0, 0, 0]])  # EOS is 3, padding 0
TARGET = torch.tensor([[2, 14, 15, 16, 17], [2, 18, 19, 0, 0]])
LAYERS, HEADS = 2, 3
KINDS = {"encoder": "encoder.self_attention", "decoder": "decoder.self_attention", "cross": "decoder.cross_attention"}


@pytest.fixture
def model(build):
    return build(layers=LAYERS, heads=HEADS)


def test_every_row_sums_to_one(model):
    found = weights(model, pairs(SOURCE, TARGET))
    shapes = {"encoder": (7, 7), "decoder": (5, 5), "cross": (5, 7)}
    for kind, shape in shapes.items():
        assert getattr(found, kind).shape == (LAYERS, 2, HEADS, *shape)
        torch.testing.assert_close(getattr(found, kind).sum(-1), torch.ones(LAYERS, 2, HEADS, shape[0]))


def test_nothing_attends_to_padding_or_to_what_comes_later(model):
    found = weights(model, pairs(SOURCE, TARGET))
    assert (found.encoder[:, 1, :, :, 4:] == 0).all()
    assert (found.cross[:, 1, :, :, 4:] == 0).all()
    assert (found.decoder.triu(1) == 0).all()
    assert (found.decoder.tril() > 0).sum() == LAYERS * 2 * HEADS * 15


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_the_values_weighted_are_the_modules_own_output(model, kind):
    stack, name = KINDS[kind].split(".")
    calls = []
    for layer in getattr(model, stack).layers:
        getattr(layer, name).register_forward_hook(lambda *call: calls.append(call), with_kwargs=True)
    found = getattr(weights(model, pairs(SOURCE, TARGET)), kind)
    assert len(calls) == LAYERS
    for layer, (module, inputs, options, output) in zip(found, calls, strict=True):
        _, _, value = module.project(*inputs, view=options["view"])
        torch.testing.assert_close(module.output((layer @ value).transpose(1, 2).flatten(2)), output)


def test_padding_changes_no_weight_of_a_sentence(model):
    together, alone = weights(model, pairs(SOURCE, TARGET)), weights(model, pairs(SOURCE[1:, :4], TARGET[1:, :3]))
    torch.testing.assert_close(together.encoder[:, 1:, :, :4, :4], alone.encoder)
    torch.testing.assert_close(together.decoder[:, 1:, :, :3, :3], alone.decoder)
    torch.testing.assert_close(together.cross[:, 1:, :, :3, :4], alone.cross)


def test_every_attention_is_of_a_kind(model):
    found = attentions(model, "weights", "heads", "output")
    names = {of: name for name, of in model.named_modules()}
    assert {kind: [names[module] for module in modules] for kind, modules in found.items()} == {
        kind: [name.replace(".", f".layers.{layer}.") for layer in range(LAYERS)] for kind, name in KINDS.items()
    }
    assert sum(name.endswith("attention") for name in names.values()) == len(KINDS) * LAYERS


def hooks(model) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_no_hook_is_left_behind(model):
    weights(model, pairs(SOURCE, TARGET))
    assert hooks(model) == 0
    with pytest.raises(IndexError):
        weights(model, pairs(SOURCE + 1000, TARGET))
    assert hooks(model) == 0


class Opaque(torch.nn.Module):
    """An attention that computes no weights."""

    def forward(self, query, memory=None, *, view, cache=None):
        return query


def test_an_attention_without_queries_and_keys_is_refused(model):
    model.decoder.layers[1].cross_attention = Opaque()
    with pytest.raises(ValueError, match="Opaque does not show its heads: it has no `weights`; MultiHeadAttention has"):
        weights(model, pairs(SOURCE, TARGET))
    assert hooks(model) == 0


def test_an_encoder_without_layers_is_refused(model):
    model.encoder = torch.nn.LSTM(3, 5)
    with pytest.raises(ValueError, match="shows no attention: 'LSTM' object has no attribute 'layers'"):
        weights(model, pairs(SOURCE, TARGET))
