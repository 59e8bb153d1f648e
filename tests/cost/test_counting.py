import pytest
import torch
from conftest import ROOT, composed, logits, pairs
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from aiayn.checkpoints.checkpoint import build as build_model
from aiayn.cost import counting as cost
from aiayn.cost.counting import Sizes
from aiayn.model.attention import multi_head as attention
from aiayn.model.model import Model
from aiayn.training.loss.label_smoothing import CHUNK_ELEMENTS

SIZES = {"layers": 2, "d_model": 14, "d_ff": 22, "heads": 3, "d_k": 5, "d_v": 7}
SMALL = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "d_k": 64, "d_v": 64}
BASE_LAYER = {"layers": 1, "d_model": 512, "d_ff": 2048, "heads": 8, "d_k": 64, "d_v": 64}


def build(sizes: dict[str, int], *, vocab_size: int, dropout: float = 0.0) -> Model:
    parts = {
        "attention": (
            "attention.multi_head.MultiHeadAttention",
            {key: sizes[key] for key in ("d_model", "heads", "d_k", "d_v")},
        ),
        "feed_forward": ("feed_forward.relu.FeedForward", {key: sizes[key] for key in ("d_model", "d_ff")}),
        "norm": ("norm.post.PostNorm", {"d_model": sizes["d_model"], "dropout": dropout}),
        "position": ("position.sinusoidal.SinusoidalPosition", {"d_model": sizes["d_model"]}),
    }
    nodes = {
        name: {"_target_": f"aiayn.model.{path}", "_partial_": True, **sizes} for name, (path, sizes) in parts.items()
    }
    depths = {f"{side}_layers": sizes["layers"] for side in ("encoder", "decoder")}
    top = {
        "_target_": "aiayn.model.transformer.TranslationTransformer",
        **depths,
        "d_model": sizes["d_model"],
        "dropout": dropout,
    }
    return build_model({**top, **nodes}, vocab_size=vocab_size)


def test_training_flops_are_those_that_torch_counts() -> None:
    model = build(SIZES, vocab_size=31)
    source, target = torch.randint(4, 31, (3, 17)), torch.randint(4, 31, (3, 13))
    with FlopCounterMode(display=False) as counter:
        logits(model, source, target).sum().backward()
    ours = cost.training_flops(
        Sizes.of(SIZES, vocab_size=31),
        source_tokens=3 * 17,
        target_tokens=3 * 13,
        source_length=17,
        target_length=2 * 13,  # torch counts the masked half of the decoder's own attention too
    )
    # Flash attention computes the scores again in its backward pass, which torch counts; and 5 of 510 tokens' worth.
    assert abs(ours / counter.get_total_flops() - 1) < 0.1


def assert_parameters_are_counted(*overrides: str) -> None:
    cfg = composed(*overrides)
    with torch.device("meta"):
        model = build_model(cfg.model, vocab_size=cfg.data.vocab_size)
    learned = cfg.model.position.max_length if cfg.model.position._target_.endswith("LearnedPosition") else 0
    sizes = Sizes.of(cfg.model, vocab_size=cfg.data.vocab_size, learned_positions=learned)
    assert cost.parameters(sizes) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", ["tiny", "small", "big"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_parameters_are_those_of_the_model(size: str, position: str) -> None:
    assert_parameters_are_counted(f"model={size}", f"model/position={position}", "model.d_k=11", "model.d_v=13")


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["full", "tiny"])
@pytest.mark.parametrize("row", sorted(path.stem for path in (ROOT / "experiments").glob("table3_*.yaml")))
def test_parameters_are_those_of_every_row_of_table_3(row: str, scale: str) -> None:
    assert_parameters_are_counted(f"experiment={row}", f"scale={scale}")


@pytest.mark.parametrize("sizes", [SMALL, BASE_LAYER, {**SMALL, "layers": 1, "d_k": 48, "d_v": 48}])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_activations_are_what_autograd_keeps(
    sizes: dict[str, int], bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fused(query, key, value, *, view, bias):  # as on a GPU; on a CPU bfloat16 goes another way in training
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=view.mask, is_causal=view.causal)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", fused)
    model = build(sizes, vocab_size=101)  # without dropout, whose masks are others on a CPU
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
        measured -= 2 * cost.parameters(Sizes.of(sizes, vocab_size=0))
    ours = cost.activation_bytes(Sizes.of(sizes, vocab_size=0), dropout=0.0, tokens=tokens.numel(), bfloat16=bfloat16)
    assert features.requires_grad
    assert abs(ours / measured - 1) < 0.01


def test_memory_is_weights_and_what_grows_with_the_tokens() -> None:
    known, sizes = {"dropout": 0.1, "bfloat16": False}, Sizes.of(SIZES, vocab_size=31)
    counted = cost.parameters(sizes)
    matrix = 31 * SIZES["d_model"]
    alone = cost.training_memory(sizes, **known, tokens=0, devices=1)
    assert alone == 16 * counted + 8 * matrix  # weights, gradients, two moments; the loss's gradient of the one matrix
    assert cost.training_memory(sizes, **known, tokens=0, devices=2) == alone + 4 * counted
    growth = cost.training_memory(sizes, **known, tokens=10, devices=1) - alone
    activations = cost.activation_bytes(sizes, dropout=0.1, tokens=10, bfloat16=False)
    assert growth == activations + 10 * (4 * 31 + 12 * SIZES["d_model"])
    assert CHUNK_ELEMENTS["cuda"] == cost.LOGITS


def test_dropout_keeps_a_byte_for_each_element() -> None:
    with_mask, without = (
        cost.activation_bytes(Sizes.of(SIZES, vocab_size=31), dropout=p, tokens=1, bfloat16=True) for p in (0.1, 0.0)
    )
    assert with_mask - without == SIZES["d_model"] * (5 * SIZES["layers"] + 2)
