from typing import Any

import numpy as np
import pytest
import torch
from conftest import PARTS, composed
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import silu
from torch.utils.flop_counter import FlopCounterMode

from aiayn.checkpoints.building import build
from aiayn.cost.counting import described_batch, mean_pair_flops, pair_flops, parameters
from aiayn.cost.memory import activation_bytes
from aiayn.model.model import Model
from aiayn.model.view import View
from aiayn.training.loss.label_smoothing import label_smoothed_cross_entropy

SIZES = {"layers": 2, "d_model": 14, "d_ff": 22, "heads": 3, "d_k": 5, "d_v": 7}
SMALL = [f"model.{key}={size}" for key, size in SIZES.items()]


class Gated(nn.Module):
    """A feed-forward network that multiplies what passes by a gate."""

    def __init__(self, d_model: int, d_ff: int, activation_dropout: float) -> None:
        super().__init__()
        self.gate, self.inner = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_model, d_ff, bias=False)
        self.outer = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        return self.outer(silu(self.gate(x)) * self.inner(x))


class Balanced(Gated):
    """It has a product in a loss of its own."""

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        view.add_loss("balance", self.inner(x).sum())
        return super().forward(x, view=view)


class Looking(Gated):
    """It asks a tensor for its value."""

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        return super().forward(x, view=view) if x.sum() > 0 else x


def built(*overrides: str, device: str = "meta", vocab_size: int = 31, **feed_forward: Any) -> Model:
    """The model of a config; on the meta device it is only described."""
    config: Any = OmegaConf.to_container(composed(*overrides), resolve=True)
    config["model"]["feed_forward"] |= feed_forward
    with torch.device(device):
        return build(config["model"], vocab_size=vocab_size)


def multiplications(source: int, target: int, *, vocab_size: int, gated: bool = False) -> int:
    """Of the forward pass on one pair, by hand from section 3, with SIZES."""
    d_model, layers, heads = SIZES["d_model"], SIZES["layers"], SIZES["heads"]
    width = heads * (SIZES["d_k"] + SIZES["d_v"])  # of query and output, as of key and value, and of what is mixed
    feed_forward = (3 if gated else 2) * d_model * SIZES["d_ff"]
    encoder = source * (2 * d_model * width + feed_forward) + width * source * source
    own = target * (2 * d_model * width + feed_forward) + width * target * target
    across = (target + source) * d_model * width + width * target * source
    return layers * (encoder + own + across) + target * d_model * vocab_size


def test_a_pair_costs_the_products_of_section_3_forward_and_twice_backward() -> None:
    counted = pair_flops(built(*SMALL), source_length=17, target_length=13, pairs=5)
    assert counted == 3 * 2 * multiplications(17, 13, vocab_size=31)


def test_flops_are_those_of_a_step_of_training_with_its_loss() -> None:
    model = built(*SMALL, "model.dropout=0", device="cpu")
    batch = described_batch(3, 17, 13)
    source, target = torch.randint(4, 31, batch.source.shape), torch.randint(4, 31, batch.target.shape)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        features = model(type(batch)(source, target, source[:, 0], torch.arange(39), padded=False)).features
        labels = target[:, 1:].flatten()
        loss, _ = label_smoothed_cross_entropy(features.flatten(0, 1), model.output_weight, labels, label_smoothing=0.1)
        loss.backward()
    ours = pair_flops(built(*SMALL), source_length=17, target_length=13, pairs=3)
    # The sums that label smoothing needs are products with one vector.
    assert ours == pytest.approx(counter.get_total_flops() / 3, rel=0.001)


@pytest.mark.slow
def test_the_mean_over_a_corpus_is_that_of_its_pairs() -> None:
    model = built(*SMALL)
    source, target = np.array([[3, 1, 41, 17, 5], [2, 7, 37, 23, 5]])
    one_by_one = [
        pair_flops(model, source_length=s, target_length=t, pairs=2) for s, t in zip(source, target, strict=True)
    ]
    assert mean_pair_flops(model, source=source, target=target, pairs=2) == pytest.approx(np.mean(one_by_one), rel=1e-9)


def test_a_model_of_ones_own_is_counted_truly() -> None:
    gated = built(*SMALL, _target_=f"{__name__}.Gated")
    flops = pair_flops(gated, source_length=17, target_length=13, pairs=1)
    assert flops == 3 * 2 * multiplications(17, 13, vocab_size=31, gated=True)
    biases, third = SIZES["d_ff"] + SIZES["d_model"], SIZES["d_model"] * SIZES["d_ff"]
    assert parameters(gated) == parameters(built(*SMALL)) + 2 * SIZES["layers"] * (third - biases)


def test_the_gradient_of_an_auxiliary_loss_is_counted() -> None:
    lengths = {"source_length": 17, "target_length": 13, "pairs": 1}
    plain, balanced = (built(*SMALL, _target_=f"{__name__}.{name}") for name in ("Gated", "Balanced"))
    product = SIZES["d_model"] * SIZES["d_ff"] * SIZES["layers"] * (17 + 13)
    assert pair_flops(balanced, **lengths) - pair_flops(plain, **lengths) == 3 * 2 * product


def test_a_model_that_asks_for_values_is_named() -> None:
    looking = built(*SMALL, _target_=f"{__name__}.Looking")
    with pytest.raises(ValueError, match=r"TranslationTransformer cannot be counted: .* without values"):
        pair_flops(looking, source_length=17, target_length=13, pairs=1)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_conf_is_counted(part: str) -> None:
    model, lengths = built(*SMALL, "model.d_k=6", part), {"source_length": 17, "target_length": 13}
    least = 3 * 2 * multiplications(17, 13, vocab_size=31)
    assert least <= pair_flops(model, **lengths, pairs=5) < 2 * least
    assert (
        0
        < activation_bytes(model, pairs=3, length=11, bfloat16=True)
        < activation_bytes(model, pairs=3, length=11, bfloat16=False)
    )


@pytest.mark.parametrize("size", ["tiny", "big"])
def test_to_count_takes_no_memory(size: str) -> None:
    model = built(f"model={size}")
    pair_flops(model, source_length=7, target_length=5, pairs=3)
    assert {tensor.device.type for weight in model.parameters() for tensor in (weight, weight.grad)} == {"meta"}
