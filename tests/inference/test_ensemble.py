from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import logits
from small_model import content
from torch.nn import functional

from aiayn.checkpoints import checkpoint
from aiayn.data.tokenizer import BOS, EOS, Tokenizer, Vocabularies
from aiayn.inference import ensemble
from aiayn.inference.beam_search import decode
from aiayn.inference.ensemble import Ensemble
from aiayn.inference.scoring import log_likelihoods
from aiayn.model.model import Model
from aiayn.model.position.learned import LearnedPosition
from aiayn.model.transformer import TranslationTransformer

Build = Callable[..., Model]
SOURCES = [np.array([5, 7, 11, 13, 17]), np.array([19]), np.array([23, 5, 7])]


@pytest.fixture
def members(build: Build) -> list[Model]:
    """Of different sizes, and far from uniform."""
    sizes = {1: (22, 2), 2: (14, 1), 3: (6, 3)}
    models = [build(seed=seed, d_model=d_model, layers=layers) for seed, (d_model, layers) in sizes.items()]
    for model in models:
        torch.nn.init.normal_(model.embedding.weight, std=0.7)
    return models


def test_its_probabilities_are_the_mean_of_its_members(members: list[Model]) -> None:
    source, target = torch.tensor([[5, 7, 11, EOS]]), torch.tensor([[BOS, 13, 17]])
    both = Ensemble(members)
    found = logits(both, source, target).softmax(-1)
    expected = torch.stack([logits(model, source, target).softmax(-1) for model in members]).mean(0)
    torch.testing.assert_close(found, expected)


def test_decoding_step_by_step_equals_the_whole(members: list[Model]) -> None:
    both = Ensemble(members)
    for source, hypotheses in zip(SOURCES, decode(both, SOURCES, beam=3, max_extra_length=5, n_best=3), strict=True):
        for hypothesis in hypotheses:
            targets = torch.tensor([[BOS, *hypothesis.tokens, EOS]])
            found = logits(both, torch.tensor([[*source, EOS]]), targets[:, :-1])
            scores = found.log_softmax(-1).gather(2, targets[:, 1:, None])
            assert hypothesis.log_probability == pytest.approx(scores.sum().item(), abs=1e-4)


def test_copies_of_one_model_are_that_model(members: list[Model]) -> None:
    alone = decode(members[0], SOURCES, beam=3, max_extra_length=5)
    copies = decode(Ensemble([members[0]] * 3), SOURCES, beam=3, max_extra_length=5)
    for one, three in zip(alone, copies, strict=True):
        assert one[0].tokens == three[0].tokens
        assert one[0].score == pytest.approx(three[0].score, abs=1e-4)


def test_given_translations_are_scored_by_the_mean(build: Build) -> None:
    vocabularies = Vocabularies.joint(Tokenizer.train(["a b c d"] * 3, vocab_size=11))
    models = [build(seed=seed, **vocabularies.sizes) for seed in (1, 2)]
    sums, _ = log_likelihoods(Ensemble(models), vocabularies, ["a b", "c"], ["d", "b b a"], tokens_per_batch=100)
    for source, target, found in zip(["a b", "c"], ["d", "b b a"], sums, strict=True):
        read, written = (torch.tensor([[*tokens, EOS]]) for tokens in vocabularies.source.encode([source, target]))
        given = functional.pad(written, (1, -1), value=BOS)
        mean = torch.stack([logits(model, read, given).softmax(-1) for model in models]).mean(0)
        assert found == pytest.approx(mean.gather(2, written[..., None]).log().sum().item(), rel=1e-5)


def test_the_member_with_the_shortest_reach_bounds_the_target(build: Build) -> None:
    short = build(position=lambda d_model: LearnedPosition(d_model, max_length=7))
    both = Ensemble([build(), short])
    assert both.longest == 7
    assert Ensemble([build(), build()]).longest is None
    found = decode(both, [np.array([5, 7])], beam=2, max_extra_length=50)
    assert len(found[0][0].tokens) < 7


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    for name, text in {"a": "one two three four", "b": "one two three five"}.items():
        vocabularies = Vocabularies.joint(Tokenizer.train([text], vocab_size=19))
        checkpoint.write(tmp_path / f"{name}.ckpt", content(vocabularies, seed=1, step=1))
    with pytest.raises(ValueError, match=r"a.ckpt and .*b.ckpt have different vocabularies"):
        ensemble.load([tmp_path / "a.ckpt", tmp_path / "b.ckpt"])
    with pytest.raises(ValueError, match="names no checkpoint"):
        ensemble.load([])
    assert isinstance(ensemble.load([tmp_path / "a.ckpt"])[1], TranslationTransformer)
    assert isinstance(ensemble.load([tmp_path / "a.ckpt"] * 2)[1], Ensemble)
