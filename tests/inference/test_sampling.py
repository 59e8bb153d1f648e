"""Samples against the probabilities that they are drawn from."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_beam_search import NO_TEXT, opinionated, sentences  # noqa: F401

from aiayn.inference import beam_search, sampling
from aiayn.model.model import Model

Build = Callable[..., Model]
PAD, UNK, BOS, EOS = range(4)
ROWS = {  # of a model whose next token depends on the last one only; a fifth of every row is what no target holds
    BOS: [0.05, 0.1, 0.05, 0.08, 0.40, 0.24, 0.08],
    4: [0.05, 0.1, 0.05, 0.40, 0.08, 0.24, 0.08],
    5: [0.05, 0.1, 0.05, 0.24, 0.08, 0.40, 0.08],
    6: [0.05, 0.1, 0.05, 0.08, 0.24, 0.08, 0.40],
}


class Chain(torch.nn.Module):
    """The model of `ROWS`."""

    pad_id, longest = PAD, None

    def __init__(self) -> None:
        super().__init__()
        table = torch.full((7, 7), 1 / 7)
        for last, row in ROWS.items():
            table[last] = torch.tensor(row)
        self.table = torch.nn.Parameter(table)

    def start(self, source: torch.Tensor) -> Mock:
        return Mock()

    def step(self, tokens: torch.Tensor, _: Mock) -> torch.Tensor:
        return self.table[tokens].log()


def drawn(count: int, **settings: Any) -> list[beam_search.Hypothesis]:
    """Samples of at most two tokens and EOS."""
    (found,) = sampling.decode(cast(Model, Chain()), [np.array([5])], n_best=count, max_extra_length=1, **settings)
    return found


def expected(change: Callable[[np.ndarray], np.ndarray]) -> dict[tuple[int, ...], float]:
    """The probability of every target of at most two tokens, `change` being made to each distribution."""
    rows = {}
    for last, row in ROWS.items():
        text = np.array(row) * ~np.isin(range(7), NO_TEXT)
        changed = change(text / text.sum())
        rows[last] = changed / changed.sum()
    result: dict[tuple[int, ...], float] = {(): rows[BOS][EOS]}
    for first in (4, 5, 6):
        result[(first,)] = rows[BOS][first] * rows[first][EOS]
    for first, second in itertools.product((4, 5, 6), repeat=2):
        result[first, second] = rows[BOS][first] * rows[first][second]  # and EOS, the only choice there
    assert sum(result.values()) == pytest.approx(1)
    return result


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, lambda row: row),
        ({"temperature": 0.5}, lambda row: row**2),
        ({"temperature": 3.0}, lambda row: row ** (1 / 3)),
        ({"top_k": 2}, lambda row: row * (row > 0.2)),  # of 0.5, 0.3, 0.1, 0.1
        ({"top_p": 0.7}, lambda row: row * (row > 0.2)),  # 0.5 and 0.3 are the fewest that have it together
        ({"top_p": 0.4}, lambda row: row * (row > 0.4)),
        ({"top_p": 1.0}, lambda row: row),
        ({"temperature": 0.5, "top_p": 0.6}, lambda row: row * (row > 0.4)),  # of 25 : 9 : 1 : 1 the first has 0.69
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_frequencies_are_the_models_probabilities(
    settings: dict[str, float], change: Callable[[np.ndarray], np.ndarray]
) -> None:
    count = 3001
    chances = {tokens: chance for tokens, chance in expected(change).items() if chance > 0}
    found = Counter(tuple(sample.tokens) for sample in drawn(count, **settings))  # type: ignore[arg-type]
    assert set(found) == set(chances)
    if len(chances) > 1:
        observed = [found[tokens] for tokens in chances]
        assert chisquare(observed, [count * chance for chance in chances.values()]).pvalue > 0.01


def test_a_sample_has_the_models_own_log_probability() -> None:
    for sample in drawn(23, temperature=0.7, top_p=0.9):
        path = [BOS, *sample.tokens, EOS]
        total = sum(np.log(ROWS[last][token]) for last, token in itertools.pairwise(path))
        assert sample.log_probability == pytest.approx(total, abs=1e-5)
        assert sample.score == pytest.approx(total / ((5 + len(path) - 1) / 6) ** 0.6, abs=1e-5)


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 0.0}], ids=str)
def test_the_most_probable_token_alone_is_greedy_search(opinionated: Build, settings: dict[str, float]) -> None:  # noqa: F811
    model, sources = opinionated(seed=3, vocab_size=17), sentences(11, 17, 7)
    greedy = beam_search.decode(model, sources, beam=1, max_extra_length=5)
    found = sampling.decode(model, sources, max_extra_length=5, **settings)  # type: ignore[arg-type]
    assert [sample.tokens for (sample,) in found] == [best.tokens for (best,) in greedy]
    for (sample,), (best,) in zip(found, greedy, strict=True):
        assert sample.log_probability == pytest.approx(best.log_probability, abs=1e-4)


def test_a_sentence_has_the_same_samples_alone_and_among_others(opinionated: Build) -> None:  # noqa: F811
    model, sources = opinionated(seed=5, vocab_size=17), sentences(13, 17, 7)

    def samples(some: list[np.ndarray], **settings: Any) -> list[list[list[int]]]:
        found = sampling.decode(model, some, max_extra_length=5, seed=3, **settings)
        return [[sample.tokens for sample in of_one] for of_one in found]

    together = samples(sources, n_best=5)
    assert together == [samples([source], n_best=5)[0] for source in sources]
    assert together == samples(sources[::-1], n_best=5, tokens_per_batch=1)[::-1]
    assert [of_one[:2] for of_one in together] == samples(sources, n_best=2)
    other = sampling.decode(model, sources, max_extra_length=5, seed=4, n_best=5)
    assert together != [[sample.tokens for sample in of_one] for of_one in other]
    assert len({tuple(tokens) for tokens in together[0]}) > 1


def test_no_sample_holds_what_is_no_text_or_passes_the_limit(opinionated: Build) -> None:  # noqa: F811
    model, sources = opinionated(seed=7, vocab_size=13), sentences(5, 13, 5)
    counted: list[int] = []
    found = sampling.decode(
        model, sources, temperature=20.0, max_extra_length=2, n_best=31, tokens_per_batch=47, progress=counted.append
    )
    assert sum(counted) == len(sources)
    for source, samples in zip(sources, found, strict=True):
        assert len(samples) == 31
        assert all(len(sample.tokens) + 1 <= len(source) + 1 + 2 for sample in samples)
        assert not {token for sample in samples for token in sample.tokens} & {*NO_TEXT, EOS}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -1.0}, r"inference\.temperature must be at least 0, got -1"),
        ({"temperature": float("nan")}, r"inference\.temperature must be at least 0, got nan"),
        ({"top_k": 0}, r"inference\.top_k must be at least 1, or null for all tokens, got 0"),
        ({"top_p": 1.5}, r"inference\.top_p must be from 0 to 1, or null for all tokens, got 1\.5"),
        ({"seed": -1}, r"inference\.seed must be at least 0, got -1"),
        ({"n_best": 0}, "n_best must be at least 1, got 0"),
        ({"max_extra_length": -1}, r"inference\.max_extra_length must not be negative, got -1"),
    ],
)
def test_an_illegal_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sampling.decode(cast(Model, Chain()), [np.array([5])], **settings)


def test_a_diverged_model_is_said_to_be_one() -> None:
    model = Chain()
    model.table.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="Its training diverged"):
        sampling.decode(cast(Model, model), [np.array([5])])
