"""Figures of heads against plain loops, and masking against taking a head out by hand."""

import math

import numpy as np
import pytest
import torch
from conftest import logits, view

from aiayn.analysis import heads
from aiayn.analysis.heads import losses, masked, measures
from aiayn.analysis.weights import Weights, weights
from aiayn.data.batching import Batch
from aiayn.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabularies
from aiayn.evaluation.metric import counted
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.inference.translation import translator
from aiayn.model.attention.multi_head import MultiHeadAttention, scaled_dot_product_attention

SOURCES = [np.array(ids, dtype=np.int32) for ids in ([5, 7, 11], [], [9], [4, 5, 6, 7, 8, 9, 10])]
TARGETS = [np.array(ids, dtype=np.int32) for ids in ([6, 8], [5, 5], [4, 12, 7, 9, 11], [10])]


def by_hand(model, pairs):
    """Entropy, distance and confidence by kind, layer and head: one sentence, layer, head and query after the other."""
    found: dict[str, dict[tuple[int, int, int], list[float]]] = {"entropy": {}, "distance": {}, "confidence": {}}
    for read, written in pairs:
        source, target = torch.tensor([[*read, EOS]]), torch.tensor([[BOS, *written, EOS]])
        of = weights(model, Batch.of(source.numpy(), target.numpy(), np.zeros(1, np.int64)))
        for kind, values in enumerate((of.encoder, of.decoder, of.cross)):
            queries, keys = values.shape[-2:]
            for layer, head, query in np.ndindex(values.size(0), values.size(2), queries):
                row = values[layer, 0, head, query].tolist()
                place = (kind, layer, head)
                entropy = -sum(weight * math.log(weight) for weight in row if weight)
                apart = (
                    abs((query + 0.5) / queries * keys - (key + 0.5)) if kind == 2 else abs(query - key)
                    for key in range(keys)
                )
                distance = sum(weight * places for weight, places in zip(row, apart, strict=True))
                found["entropy"].setdefault(place, []).append(entropy)
                found["distance"].setdefault(place, []).append(distance)
                if kind == 1 or (kind == 2 or query < len(read)):  # EOS asks in the encoder only
                    found["confidence"].setdefault(place, []).append(max(row if kind == 1 else row[:-1]))
    return {name: {place: np.mean(values) for place, values in of.items()} for name, of in found.items()}


@pytest.mark.parametrize("tokens_per_batch", [1, 14, 1000])
def test_measures_are_means_over_the_real_positions_whatever_is_in_a_batch(build, tokens_per_batch):
    model = build(layers=3)
    expected = by_hand(model, [pair for pair in zip(SOURCES, TARGETS, strict=True) if len(pair[0])])
    found = measures(model, SOURCES, TARGETS, tokens_per_batch=tokens_per_batch)
    for name, values in expected.items():
        assert found[name].shape == (3, 3, 2)
        for place, value in values.items():
            np.testing.assert_allclose(found[name][place], value, rtol=1e-5, err_msg=f"{name} {place}")


def test_heads_that_look_everywhere_alike(build):
    model = build()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for parameter in module.query.parameters():
                parameter.detach().zero_()  # so that all scores are zero
    found = measures(model, [np.arange(4, 10)], [np.arange(4, 8)], tokens_per_batch=100)
    entropies = [math.log(7), np.mean(np.log(range(1, 6))), math.log(7)]
    confidences = [1 / 7, np.mean(1 / np.arange(1, 6)), 1 / 7]
    for kind in range(3):
        np.testing.assert_allclose(found["entropy"][kind], entropies[kind], rtol=1e-6)
        np.testing.assert_allclose(found["confidence"][kind], confidences[kind], rtol=1e-6)
    mean = np.abs(np.subtract.outer(np.arange(7), np.arange(7))).mean()
    np.testing.assert_allclose(found["distance"][0], mean, rtol=1e-6)


def test_heads_that_look_at_one_position(build, monkeypatch):
    diagonal, previous = torch.eye(5), torch.eye(5).roll(-1, dims=1)
    previous[0] = diagonal[0]
    end = torch.zeros(5, 5)
    end[:, -1] = 1
    one = torch.stack([diagonal, previous, end])[None, None]  # (layers, batch, heads, query, key)
    monkeypatch.setattr(heads, "weights", lambda *_: Weights(one, one, one))
    found = measures(build(heads=3), [np.arange(4, 8)], [np.arange(4, 8)], tokens_per_batch=100)
    np.testing.assert_array_equal(found["entropy"], 0)
    np.testing.assert_allclose(found["distance"][:, 0], [[0, 4 / 5, 2]] * 3, atol=1e-6)
    # To look at EOS is no confidence, nor does EOS count that looks at itself or at the last word.
    np.testing.assert_allclose(found["confidence"][0, 0], [1, 1, 0])
    np.testing.assert_allclose(found["confidence"][1, 0], [1, 1, 1])
    np.testing.assert_allclose(found["confidence"][2, 0], [4 / 5, 1, 0])


@pytest.mark.parametrize("missing", ["heads", "output"])
def test_heads_that_cannot_be_masked_are_refused(build, missing):
    model = build()
    delattr(model.decoder.layers[1].cross_attention, missing)
    with pytest.raises(ValueError, match=f"MultiHeadAttention does not show its heads: it has no `{missing}`"):
        losses(model, Bleu(), lambda: counted(Bleu(), ["a"], [["b"]], None))


def test_without_a_source_word_there_is_nothing_to_measure(build):
    with pytest.raises(ValueError, match="all source sentences are empty"):
        measures(build(), SOURCES[1:2], TARGETS[1:2], tokens_per_batch=7)


@pytest.mark.parametrize("head", [0, 1, 2])
@pytest.mark.parametrize("of_memory", [False, True])
def test_a_masked_head_is_one_whose_context_is_zero(head, of_memory):
    torch.manual_seed(1)
    attention = MultiHeadAttention(11, 3, d_k=5, d_v=7).eval()
    query, memory = torch.randn(2, 13, 11), torch.randn(2, 3, 11) if of_memory else None
    seen = view(13, 3 if of_memory else 13)
    context = scaled_dot_product_attention(*attention.project(query, memory, view=seen), view=seen)
    context[:, head] = 0
    with masked(attention, head):
        found = attention(query, memory, view=seen)
    torch.testing.assert_close(found, attention.output(context.transpose(1, 2).flatten(2)))


def test_a_masked_model_is_as_it_was_afterwards_bit_for_bit(build):
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attention = model.decoder.layers[1].cross_attention
    with masked(attention, 1):
        pass
    with pytest.raises(RuntimeError), masked(attention, 0):
        raise RuntimeError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.fixture
def texts() -> list[str]:
    return ["a b c a f g", "c d a e a b c a", "b a g d e", "a f b c c"]


@pytest.fixture
def tokenizer(texts) -> Tokenizer:
    return Tokenizer.train(texts * 5, vocab_size=19)


@pytest.fixture
def model(build, tokenizer, texts):
    """It has learnt to copy, more or less. Its second encoder head does nothing, as its columns of W^O are zero."""
    model = build(vocab_size=tokenizer.vocab_size)
    ids = [torch.tensor([*sentence, EOS]) for sentence in tokenizer.encode(texts)]
    source = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    target = torch.nn.functional.pad(source, (1, -1), value=BOS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(97):
        found = logits(model, source, target).flatten(0, 1)
        torch.nn.functional.cross_entropy(found, source.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.encoder.layers[0].self_attention.output.weight.detach()[:, 7:] = 0
    return model


def test_what_is_lost_without_a_head(model, tokenizer, texts):
    search = {"beam": 1, "alpha": 0.6, "max_extra_length": 3, "tokens_per_batch": 100}
    searcher = translator(model, Vocabularies.joint(tokenizer), **search)
    # References that the whole model translates without a mistake, so that there is something to lose.
    references = searcher.translate(texts)
    full, found = losses(model, Bleu(), lambda: counted(Bleu(), searcher.translate(texts), [references], None))
    assert full.value == pytest.approx(100)
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == dict.fromkeys(("lost", "p", "p_holm"), (3, 2, 2))
    for kind, layer, head in ((0, 1, 1), (1, 0, 1), (2, 1, 0)):
        side = model.encoder if kind == 0 else model.decoder
        attention = side.layers[layer].cross_attention if kind == 2 else side.layers[layer].self_attention
        with masked(attention, head):
            without = counted(Bleu(), searcher.translate(texts), [references], None)[0].value
        assert found["lost"][kind, layer, head] == full.value - without
    assert found["lost"].max() > 1
    assert (found["lost"][0, 0, 1], found["p"][0, 0, 1], found["p_holm"][0, 0, 1]) == (0, 1, 1)
    assert searcher.translate(texts) == references
