"""Word alignments: which row is read, pieces to words, batches, ensembles."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aiayn.analysis import alignment
from aiayn.analysis.alignment import align, shares, words
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.inference.ensemble import Ensemble

SOURCES = ["ab c", "", "c cab ab abc c", "b"]
TARGETS = ["c b", "a ab b", "", "c ba cab ab"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([*SOURCES, *TARGETS] * 5, vocab_size=11)


@pytest.fixture
def attending(monkeypatch):
    """Let models attend as a function of the model tells: for each target position the source position."""

    def attend(positions):
        def found(model, batch):
            source, target = batch.source, batch.target[:, :-1]
            cross = torch.full((2, len(source), 3, target.size(1), source.size(1)), 0.1)
            for query, key in enumerate(positions(model)[: target.size(1)]):
                cross[1, :, :, query, key] = 0.4
            return SimpleNamespace(cross=cross)

        monkeypatch.setattr(alignment, "weights", found)

    return attend


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        ("_a _b c _d", [0, 1, 1, 2]),
        ("a _b", [0, 1]),  # a translation may begin so
        ("_a _ b", [0, 1, 1]),
        ("_a _ _b _", [0, 1, 1, -1]),
        ("_", [-1]),
        ("_a _?_ b", [0, 1, 2]),
        ("", []),
    ],
)
def test_a_piece_is_in_the_word_that_white_space_gives(pieces, numbers):
    surfaces = [piece.replace("_", " ") for piece in pieces.split()]
    assert words(surfaces) == numbers
    assert len("".join(surfaces).split()) == max(numbers, default=-1) + 1


@pytest.mark.parametrize("text", ["c\u00b4ab c", " ab  \u200b c\u00ad ab \u00a8c ", "c\u00a0ab", "c \u2581 c", " ", ""])
def test_words_are_those_of_the_text_and_not_of_what_the_tokenizer_makes_of_it(tokenizer, text):
    found = words(tokenizer.surfaces(text))
    assert len(found) == len(tokenizer.encode([text])[0])
    assert max(found, default=-1) == len(text.split()) - 1


def test_the_row_that_predicts_a_piece_aligns_it(build, tokenizer, attending):
    [source] = tokenizer.encode(["c cab"])
    assert tokenizer.pieces(source) == ["\u2581c", "\u2581c", "ab"]
    [target] = tokenizer.encode(["cab c"])
    assert tokenizer.pieces(target) == ["\u2581c", "ab", "\u2581c"]
    model = build(vocab_size=tokenizer.vocab_size)
    attending(lambda model: [0, 2, 1, 0])
    assert align(model, Vocabularies.joint(tokenizer), ["c cab"], [target]) == [[(0, 0), (1, 0), (1, 1)]]


def test_a_piece_that_attends_to_eos_is_linked_to_nothing(build, tokenizer, attending):
    attending(lambda model: [2, 0])
    [target] = tokenizer.encode(["c c"])
    assert align(build(vocab_size=tokenizer.vocab_size), Vocabularies.joint(tokenizer), ["c c"], [target]) == [[(0, 1)]]


def test_links_count_the_words_of_a_source_that_the_normaliser_takes_apart(build, tokenizer, attending):
    source = "c\u00b4ab c"  # two words, three once a space is put before the accent
    attending(lambda model: [len(tokenizer.encode([source])[0]) - 1])
    [target] = tokenizer.encode(["c"])
    assert align(build(vocab_size=tokenizer.vocab_size), Vocabularies.joint(tokenizer), [source], [target]) == [
        [(1, 0)]
    ]


def test_sentences_together_align_as_each_alone(build, tokenizer, monkeypatch):
    model = build(vocab_size=tokenizer.vocab_size)
    targets = [ids.tolist() for ids in tokenizer.encode(TARGETS)]
    together = align(model, Vocabularies.joint(tokenizer), SOURCES, targets)
    assert any(together)
    assert together[1] == together[2] == []
    for source, target, links in zip(SOURCES, targets, together, strict=True):
        assert align(model, Vocabularies.joint(tokenizer), [source], [target]) == [links]
    monkeypatch.setattr(alignment, "TOKENS", 1)
    assert align(model, Vocabularies.joint(tokenizer), SOURCES, targets) == together
    assert align(model, Vocabularies.joint(tokenizer), [], []) == []


def test_shares_are_of_what_a_source_position_gets_in_each_layer():
    cross = torch.rand(2, 3, 5, 7, 11, generator=torch.Generator().manual_seed(1))
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    cross[:, 1, :, :, 9:] = 0  # the second source is padded
    found = shares(cross, real)
    for row, token, position in np.ndindex(3, 7, 11):
        expected = 0.0
        for layer in range(2):
            given = [cross[layer, row, :, other, position].sum().item() for other in range(7) if real[row, other]]
            expected += given[token] / sum(given) / 2 if real[row, token] and sum(given) else 0
        assert found[row, token, position].item() == pytest.approx(expected)


def test_a_position_that_every_token_attends_to_is_no_one_s(build, tokenizer, monkeypatch):
    cross = torch.tensor([[0.3, 0.1, 0.6], [0.1, 0.3, 0.6], [0.1, 0.1, 0.8]])[None, None, None]
    monkeypatch.setattr(alignment, "weights", lambda *_: SimpleNamespace(cross=cross))
    [target] = tokenizer.encode(["c c"])
    assert align(build(vocab_size=tokenizer.vocab_size), Vocabularies.joint(tokenizer), ["c c"], [target]) == [
        [(0, 0), (1, 1)]
    ]


def test_the_members_of_an_ensemble_are_averaged(build, tokenizer, attending):
    models = [build(vocab_size=tokenizer.vocab_size, seed=seed) for seed in (1, 2, 3)]
    attending(lambda model: [1] if model is models[0] else [0])
    [target] = tokenizer.encode(["c"])
    assert align(models[0], Vocabularies.joint(tokenizer), ["c c"], [target]) == [[(1, 0)]]
    assert align(Ensemble(models), Vocabularies.joint(tokenizer), ["c c"], [target]) == [[(0, 0)]]
