"""Log-likelihoods of given translations."""

import numpy as np
import pytest
import torch
from conftest import logits

from aiayn.data.tokenizer import BOS, EOS, Tokenizer, Vocabularies
from aiayn.inference.scoring import log_likelihoods

SOURCES = ["a b c", "", "c c a b a b c a", "b"]
TARGETS = ["c b", "a a a b", "", "c b a c b a b"]


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train([*SOURCES, *TARGETS] * 5, vocab_size=10))


def by_hand(model, vocabularies, source: str, target: str) -> float:
    read, written = (vocabularies.source.encode([text])[0].tolist() for text in (source, target))
    found = logits(model, torch.tensor([[*read, EOS]]), torch.tensor([[BOS, *written]]))[0]
    return found.log_softmax(-1)[range(len(written) + 1), [*written, EOS]].sum().item()


@pytest.mark.parametrize("tokens_per_batch", [1, 12, 1000])
def test_each_pair_gets_the_sum_of_its_log_probabilities(build, vocabularies, tokens_per_batch):
    model = build(**vocabularies.sizes)
    sums, pieces = log_likelihoods(model, vocabularies, SOURCES, TARGETS, tokens_per_batch=tokens_per_batch)
    expected = [by_hand(model, vocabularies, source, target) for source, target in zip(SOURCES, TARGETS, strict=True)]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert pieces.tolist() == [len(tokens) + 1 for tokens in vocabularies.source.encode(TARGETS)]


def test_the_projection_in_parts_changes_nothing(build, vocabularies, monkeypatch):
    model = build(**vocabularies.sizes)
    whole, _ = log_likelihoods(model, vocabularies, SOURCES, TARGETS, tokens_per_batch=1000)
    monkeypatch.setattr("aiayn.model.likelihood.PROJECTED", 3)
    parts, _ = log_likelihoods(model, vocabularies, SOURCES, TARGETS, tokens_per_batch=1000)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
