"""What holds of every part that conf/model has a file for, in a whole model."""

import pytest
import torch
from conftest import PARTS, composed, logits
from omegaconf import OmegaConf
from torch import nn

from aiayn.checkpoints.building import build
from aiayn.model.model import Model

SIZES = ["layers=2", "d_model=22", "d_ff=31", "heads=3", "d_k=6", "d_v=7", "dropout=0"]
# So that ten tokens reach beyond what a part tells apart.
NARROW = {
    "model/attention=restricted": ["model.attention.window=3"],
    "model/position=shaw": ["model.attention.relative.clip=2"],
    "model/position=bucketed": ["model.attention.relative.buckets=8", "model.attention.relative.distance=7"],
}
every_part = pytest.mark.parametrize("part", PARTS)


def built(*overrides: str) -> Model:
    """A model of few, random weights in evaluation mode."""
    narrow = [value for override in overrides for value in NARROW.get(override, [])]
    cfg = composed(*(f"model.{size}" for size in SIZES), *overrides, *narrow)
    torch.manual_seed(1)
    model = build(OmegaConf.to_container(cfg.model, resolve=True), vocab_size=29)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or ".relative." in name:  # which begin at 0 or 1, or small
            nn.init.normal_(parameter, mean=0.5)
    return model.eval()


@every_part
def test_cached_decoding_equals_uncached_after_reorder_and_select(part: str) -> None:
    model = built(part)
    source = torch.randint(1, 29, (5, 13))
    source[0, 7:] = 0
    state = model.start(source)
    tokens = torch.full((5, 1), 2)
    targets = tokens[:, :, None]  # (batch, beam, length)
    for width in (3, 3, 2, 4, 4, 1, 3, 2, 3):
        stepped = model.step(tokens, state)
        for beam in range(targets.size(1)):
            expected = logits(model, source, targets[:, beam])[:, -1]
            torch.testing.assert_close(stepped[:, beam], expected, atol=1e-5, rtol=1e-5)
        beam_index = torch.randint(targets.size(1), (len(source), width))
        tokens = torch.randint(1, 29, beam_index.shape)
        targets = torch.cat([targets[torch.arange(len(source))[:, None], beam_index], tokens[:, :, None]], -1)
        state.reorder(beam_index)
        if width == 4:
            rows = torch.arange(len(source)).roll(2)[:-1]
            state.select(rows.tolist())
            source, tokens, targets = source[rows], tokens[rows], targets[rows]
    assert len(source) == 3


@every_part
def test_padding_never_changes_a_real_logit(part: str) -> None:
    model = built(part)
    source, target = torch.randint(1, 29, (3, 13)), torch.randint(1, 29, (3, 11))
    expected = logits(model, source, target)
    for more in (1, 17):
        padded_source, padded_target = nn.functional.pad(source, (0, more)), nn.functional.pad(target, (0, more + 2))
        found = logits(model, padded_source, padded_target)[:, :11]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@every_part
def test_a_future_token_never_changes_a_past_logit(part: str) -> None:
    model = built(part)
    source, target = torch.randint(1, 29, (3, 13)), torch.randint(1, 29, (3, 11))
    found = logits(model, source, target)
    target[:, 7] = target[:, 7] % 28 + 1
    changed = logits(model, source, target)
    assert torch.equal(changed[:, :7], found[:, :7])
    assert (changed[:, 7] != found[:, 7]).any(-1).all()


@every_part
def test_every_parameter_is_trained_also_in_bfloat16(part: str) -> None:
    model = built(part, "model.attention_dropout=0.1").train()
    source, target = torch.randint(1, 29, (3, 13)), torch.randint(1, 29, (3, 11))
    with torch.autocast("cpu", torch.bfloat16):
        logits(model, source, target).float().logsumexp(-1).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, found in gradients.items() if found is None or not found.isfinite().all()] == []


@pytest.mark.parametrize("position", ["none", "rotary", "alibi", "shaw", "bucketed"])
def test_the_order_of_what_is_read_counts_by_its_positions_alone(position: str) -> None:
    model = built(f"model/position={position}")
    source, target, order = torch.arange(4, 17)[None], torch.randint(1, 29, (1, 11)), torch.randperm(13)
    found, permuted = (logits(model, tokens, target) for tokens in (source, source[:, order]))
    assert torch.allclose(found, permuted, atol=1e-5) == (position == "none")
