import pytest
import torch
from conftest import pairs
from test_counting import SIZES, SMALL, built
from torch.nn import functional

from aiayn.cost.counting import parameters
from aiayn.cost.memory import activation_bytes, training_memory
from aiayn.model.attention import multi_head as attention

LAYERS = {
    "three layers": ["model=small"],
    "a layer of base": ["model=base", "model.layers=1"],
    "narrow heads": ["model=small", "model.layers=1", "model.d_k=48", "model.d_v=48"],
    "shared keys": ["model=small", "model.layers=1", "model.kv_heads=2"],
}


@pytest.mark.parametrize("sizes", LAYERS)
@pytest.mark.parametrize("bfloat16", [False, True])
def test_activations_are_what_autograd_keeps(sizes: str, bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU; on a CPU bfloat16 goes another way in training.
    def fused(query, key, value, *, view, bias, dropout, scale):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=view.mask, is_causal=view.causal, enable_gqa=key.size(1) != query.size(1)
        )

    monkeypatch.setattr(attention, "scaled_dot_product_attention", fused)
    # Without dropout, whose masks are others on a CPU.
    model = built(*LAYERS[sizes], "model.dropout=0", device="cpu", vocab_size=101)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(4, 101, (7, 23))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bfloat16),
    ):
        features = model(pairs(tokens, tokens)).features
    measured = sum(kept.values())
    if bfloat16:  # the weights, cast; counted with the weights
        measured -= 2 * (parameters(model) - model.output_weight.numel())
    ours = activation_bytes(
        built(*LAYERS[sizes], "model.dropout=0", vocab_size=101), pairs=7, length=23, bfloat16=bfloat16
    )
    assert features.requires_grad
    assert abs(ours / measured - 1) < 0.01


def test_memory_is_weights_and_what_grows_with_the_tokens() -> None:
    model = built(*SMALL)
    matrix = 31 * SIZES["d_model"]
    alone = training_memory(model, activations=7, tokens=0, bfloat16=False, devices=1)
    # weights, gradients, two moments; the loss's gradient of the one matrix
    assert alone == 16 * parameters(model) + 8 * matrix
    assert training_memory(model, activations=7, tokens=0, bfloat16=False, devices=2) == alone + 4 * parameters(model)
    growth = training_memory(model, activations=7, tokens=10, bfloat16=False, devices=1) - alone
    assert growth == 10 * (7 + 4 * 31 + 12 * SIZES["d_model"])


@pytest.mark.parametrize("bfloat16", [False, True])
def test_dropout_keeps_a_byte_for_each_element(bfloat16: bool) -> None:
    with_masks, without = (
        activation_bytes(built(*SMALL, f"model.dropout={p}"), pairs=3, length=11, bfloat16=bfloat16) for p in (0.1, 0)
    )
    assert with_masks - without == 3 * 11 * SIZES["d_model"] * (5 * SIZES["layers"] + 2)


def test_what_attention_writes_out_grows_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def written_out(query, key, value, *, view, bias, dropout, scale):
        return attention.attention_weights(query, key, view=view, bias=bias) @ value

    fused = [activation_bytes(built(*SMALL), pairs=1, length=length, bfloat16=False) for length in (32, 64)]
    monkeypatch.setattr(attention, "scaled_dot_product_attention", written_out)
    written = [activation_bytes(built(*SMALL), pairs=1, length=length, bfloat16=False) for length in (32, 64)]
    assert fused[1] < 2.01 * fused[0]
    assert written[1] - fused[1] > 3.5 * (written[0] - fused[0])
