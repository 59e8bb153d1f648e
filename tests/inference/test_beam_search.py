from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import logits
from torch.utils._python_dispatch import TorchDispatchMode

from aiayn.inference import sampling
from aiayn.inference.beam_search import Hypothesis, by_length, decode, length_penalty, search, top
from aiayn.model.model import Model
from aiayn.model.position.learned import LearnedPosition

Build = Callable[..., Model]
PAD, UNK, BOS, EOS = range(4)
NO_TEXT = [PAD, UNK, BOS]  # what no target holds


@pytest.fixture
def opinionated(build: Build) -> Build:
    """Random models that are far from uniform, so that hypotheses differ and end at different lengths."""

    def opinionated(seed: int, **sizes: int) -> Model:
        model = build(seed=seed, **sizes)
        torch.nn.init.normal_(model.embedding.weight, std=0.5)
        return model

    return opinionated


def sentences(count: int, vocab_size: int, longest: int) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.integers(4, vocab_size, generator.integers(0, longest + 1)) for _ in range(count)]


def padded(sources: list[np.ndarray]) -> torch.Tensor:
    rows = [torch.tensor([*source, EOS]) for source in sources]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def exhaustive(model: Model, source: np.ndarray, limit: int, alpha: float, beta: float = 5) -> list[Hypothesis]:
    """Every target of at most `limit` tokens with EOS, scored without cache or beam, best first."""
    words = [token for token in range(model.embedding.num_embeddings) if token not in (*NO_TEXT, EOS)]
    found = []
    for length in range(1, limit + 1):
        tokens = torch.tensor(list(product(words, repeat=length - 1)), dtype=torch.long).reshape(
            len(words) ** (length - 1), length - 1
        )
        targets = torch.nn.functional.pad(torch.nn.functional.pad(tokens, (1, 0), value=BOS), (0, 1), value=EOS)
        scored = logits(model, padded([source]).expand(len(targets), -1), targets[:, :-1])
        log_probability = scored.log_softmax(-1).gather(2, targets[:, 1:, None]).sum((1, 2))
        scores = log_probability / ((beta + length) / (beta + 1)) ** alpha
        found += [
            Hypothesis(*row) for row in zip(tokens.tolist(), scores.tolist(), log_probability.tolist(), strict=True)
        ]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


class Chain:
    """A model whose next token depends on the last one only: `probabilities[last][next]`."""

    pad_id, longest = PAD, None

    def __init__(self, probabilities: dict[int, dict[int, float]]) -> None:
        self.table = torch.full((7, 7), 1e-30)
        for last, row in probabilities.items():
            for token, probability in row.items():
                self.table[last, token] = probability
        self.steps = 0

    def start(self, source: torch.Tensor) -> Mock:
        return Mock()

    def step(self, tokens: torch.Tensor, _: Mock) -> torch.Tensor:
        self.steps += 1
        return self.table[tokens].log()

    def search(self, **settings: Any) -> list[Hypothesis]:
        return search(cast(Model, self), torch.tensor([[5, EOS]]), **settings)[0]


def test_a_finished_hypothesis_does_not_stop_one_that_can_still_win() -> None:
    chain = Chain({BOS: {EOS: 0.6, 4: 0.4}, 4: {5: 1.0}, 5: {6: 1.0}, 6: {EOS: 1.0}})
    found = chain.search(beam=2, alpha=2.0)
    assert [hypothesis.tokens for hypothesis in found] == [[4, 5, 6], []]
    assert [h.score for h in found] == pytest.approx([np.log(0.4) / 1.5**2, np.log(0.6)])


def test_the_search_stops_when_no_live_hypothesis_can_win() -> None:
    chain = Chain({BOS: {EOS: 0.99, 4: 0.01}, 4: {4: 1.0}})
    assert [hypothesis.tokens for hypothesis in chain.search(beam=2, alpha=0.6)] == [[]]
    assert chain.steps == 1


def test_a_finished_hypothesis_keeps_its_place() -> None:
    chain = Chain({BOS: {EOS: 0.6, 4: 0.4}, 4: {EOS: 0.6, 4: 0.4}})
    assert [hypothesis.tokens for hypothesis in chain.search(beam=2, alpha=1.0)] == [[], [4]]
    assert chain.steps == 2


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 5), (0.6, 5), (1.0, 5), (3.0, 5), (0.6, 0), (1.0, 0)])
def test_a_wide_beam_equals_exhaustive_search(opinionated: Build, alpha: float, beta: float) -> None:
    orders = set()
    for seed in range(7):
        model = opinionated(seed, vocab_size=7)
        sources = [np.array([5, 4]), np.array([4]), np.array([], dtype=int)]
        found = search(model, padded(sources), beam=200, alpha=alpha, beta=beta, max_extra_length=2)
        for source, hypotheses in zip(sources, found, strict=True):
            expected = exhaustive(model, source, len(source) + 1 + 2, alpha, beta)
            assert hypotheses[0].tokens == expected[0].tokens
            assert hypotheses[0].score == pytest.approx(expected[0].score, abs=1e-4)
            assert hypotheses[0].log_probability == pytest.approx(expected[0].log_probability, abs=1e-4)
            scores = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in expected}
            for hypothesis in hypotheses:
                assert hypothesis.score == pytest.approx(scores[tuple(hypothesis.tokens)], abs=1e-4)
            orders.add(tuple(len(hypothesis.tokens) for hypothesis in hypotheses[:5]))
    assert len(orders) > 5  # the cases are not all alike


def test_beam_one_is_greedy_argmax(opinionated: Build) -> None:
    model = opinionated(3, vocab_size=29)
    sources = sentences(17, 29, 11)
    found = search(model, padded(sources), beam=1, max_extra_length=7)
    for source, hypotheses in zip(sources, found, strict=True):
        target = [BOS]
        while target[-1] != EOS and len(target) <= len(source) + 1 + 7:
            found = logits(model, padded([source]), torch.tensor([target]))[0, -1]
            found[NO_TEXT] = -torch.inf
            target.append(int(found.argmax()))
        tokens = [token for token in target[1:] if token != EOS][: len(source) + 7]  # EOS is forced at the limit
        assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_is_decoded_alike_alone_and_among_others(opinionated: Build, beam: int) -> None:
    model = opinionated(2, vocab_size=97)
    sources = sentences(64, 97, 13)
    together = search(model, padded(sources), beam=beam, max_extra_length=5)
    for source, hypotheses in zip(sources, together, strict=True):
        alone = search(model, padded([source]), beam=beam, max_extra_length=5)[0]
        assert [hypothesis.tokens for hypothesis in alone] == [hypothesis.tokens for hypothesis in hypotheses]
        assert [h.score for h in alone] == pytest.approx([h.score for h in hypotheses], abs=1e-4)
    assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 5


def test_a_hypothesis_is_scored_by_the_probability_of_its_tokens_and_eos(opinionated: Build) -> None:
    model = opinionated(2, vocab_size=97)
    source = sentences(1, 97, 13)
    for hypothesis in search(model, padded(source), beam=5, alpha=0.6)[0]:
        target = torch.tensor([[BOS, *hypothesis.tokens, EOS]])
        chosen = logits(model, padded(source), target[:, :-1]).log_softmax(-1).gather(2, target[:, 1:, None])
        assert hypothesis.log_probability == pytest.approx(chosen.sum().item(), abs=1e-4)
        length = len(hypothesis.tokens) + 1
        assert hypothesis.score == pytest.approx(hypothesis.log_probability / ((5 + length) / 6) ** 0.6)


@pytest.mark.parametrize("beam", [1, 3])
def test_no_target_holds_what_is_no_text_or_passes_the_limit(build: Build, beam: int) -> None:
    model = build(vocab_size=7)
    torch.nn.init.zeros_(model.get_parameter("decoder.layers.1.feed_forward_norm.norm.weight"))
    torch.nn.init.zeros_(model.get_parameter("decoder.layers.1.feed_forward_norm.norm.bias")).data[0] = 1
    # PAD, UNK and BOS would win at every step, EOS never.
    model.embedding.weight.data[:, 0] = torch.tensor([9.0, 9.0, 9.0, -9.0, 0.0, 0.1, 0.2])
    found = search(model, torch.tensor([[5, 6, 4, 3], [5, 3, 0, 0]]), beam=beam, max_extra_length=5)
    assert [hypotheses[0].tokens for hypotheses in found] == [[6] * 8, [6] * 6]
    assert {token for hypotheses in found for h in hypotheses for token in h.tokens} <= {4, 5, 6}


def test_ties_are_broken_alike_every_time(build: Build) -> None:
    model = build(vocab_size=97)
    torch.nn.init.zeros_(model.embedding.weight)  # every token is as likely as any other
    source = torch.tensor([[5, 6, 3], [7, 3, 0]])
    first = search(model, source, beam=4, max_extra_length=3)
    assert search(model, source, beam=4, max_extra_length=3) == first
    assert search(model, source[:1], beam=4, max_extra_length=3) == first[:1]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_the_n_best_equal_exhaustive_search(opinionated: Build, alpha: float) -> None:
    for seed in range(5):
        model = opinionated(seed, vocab_size=7)
        sources = [np.array([5, 4]), np.array([4])]
        found = search(model, padded(sources), beam=200, alpha=alpha, max_extra_length=2, n_best=7)
        for source, hypotheses in zip(sources, found, strict=True):
            expected = exhaustive(model, source, len(source) + 1 + 2, alpha)[:7]
            assert [hypothesis.tokens for hypothesis in hypotheses[:7]] == [
                hypothesis.tokens for hypothesis in expected
            ]


def test_asking_for_more_does_not_change_the_best(opinionated: Build) -> None:
    model = opinionated(3, vocab_size=97)
    sources = sentences(19, 97, 11)
    few, many = (decode(model, sources, beam=5, max_extra_length=7, n_best=n) for n in (1, 5))
    assert [hypotheses[0].tokens for hypotheses in few] == [hypotheses[0].tokens for hypotheses in many]
    assert {len(hypotheses) for hypotheses in many} == {5}


class Asked(TorchDispatchMode):
    """Counts the values that the host asks the device for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::")
        by_truth = name.startswith(("index", "_index")) and any(
            isinstance(x, torch.Tensor) and x.dtype == torch.bool
            for x in (args[1] if isinstance(args[1], list | tuple) else [])
        )
        self.count += by_truth or name in ("item", "is_nonzero", "_local_scalar_dense", "nonzero")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("decoder", [partial(decode, beam=4), partial(decode, beam=1), sampling.decode])
def test_a_step_asks_the_device_once(opinionated: Build, monkeypatch: pytest.MonkeyPatch, decoder: Any) -> None:
    model, asked, before = opinionated(2, vocab_size=97), Asked(), []
    for name in ("cpu", "tolist"):  # no operation where there is no other device
        original = getattr(torch.Tensor, name)

        def copied(x: torch.Tensor, original: Any = original) -> Any:
            asked.count += 1
            return original(x)

        monkeypatch.setattr(torch.Tensor, name, copied)

    step = model.step
    monkeypatch.setattr(model, "step", lambda *given: before.append(asked.count) or step(*given))
    with asked:
        decoder(model, sentences(41, 97, 13), max_extra_length=5)
    assert len(before) > 11
    assert set(np.diff(before)) == {1}, before


def test_learned_positions_bound_the_target(build: Build) -> None:
    model = build(position=lambda d_model: LearnedPosition(d_model, max_length=7))
    found = search(model, torch.tensor([[5, 3]]), beam=3, max_extra_length=50)
    assert all(len(hypothesis.tokens) < 7 for hypothesis in found[0])


def test_decode_keeps_the_order_and_the_mode_and_reports_every_sentence(opinionated: Build) -> None:
    model = opinionated(2, vocab_size=97).train()
    sources = sentences(23, 97, 13)
    done: list[int] = []
    found = decode(model, sources, beam=3, tokens_per_batch=60, max_extra_length=5, progress=done.append)
    assert model.training
    model.eval()
    expected = [search(model, padded([source]), beam=3, max_extra_length=5)[0][0].tokens for source in sources]
    assert [hypotheses[0].tokens for hypotheses in found] == expected
    assert {len(hypotheses) for hypotheses in found} == {1}
    assert sum(done) == 23
    assert done[0] == 60 // (max(map(len, sources)) + 1 + 5)  # the longest first


def test_batches_begin_with_the_longest_and_keep_to_the_budget() -> None:
    lengths = np.array([3, 11, 5, 2, 5, 7])
    batches = [indices.tolist() for indices in by_length(lengths, tokens_per_batch=17, extra=1)]
    assert batches == [[1], [5, 2], [4, 0], [3]]  # 12, 2 x 8, 2 x 6, 3
    assert [len(indices) for indices in by_length(lengths, tokens_per_batch=1, extra=0)] == [1] * 6
    assert list(by_length(lengths[:0], tokens_per_batch=17, extra=1)) == []
    with pytest.raises(ValueError, match=r"inference\.tokens_per_batch must be at least 1, got 0"):
        next(by_length(lengths, tokens_per_batch=0, extra=1))


def test_the_length_penalty_is_equation_14() -> None:
    assert length_penalty(1, 0.6).item() == 1
    assert length_penalty(torch.tensor([7, 25]), 0.6).tolist() == pytest.approx([2**0.6, 5**0.6])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "inference.beam must be at least 1, got 0"),
        ({"alpha": -0.1}, "inference.alpha must not be negative, got -0.1"),
        ({"beta": -1}, "inference.beta must not be negative, got -1"),
        ({"max_extra_length": -1}, "inference.max_extra_length must not be negative, got -1"),
        ({"beam": 3, "n_best": 5}, "n_best must be from 1 to inference.beam, got n_best=5, inference.beam=3"),
        ({"n_best": 0}, "n_best must be from 1 to inference.beam, got n_best=0"),
    ],
)
def test_an_illegal_setting_is_named(build: Build, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(build(), torch.tensor([[5, 3]]), **settings)


def test_a_diverged_model_is_said_to_be_one(build: Build) -> None:
    model = build()
    torch.nn.init.constant_(model.embedding.weight, torch.nan)
    with pytest.raises(ValueError, match="logits are not numbers"):
        search(model, torch.tensor([[5, 3]]))


@pytest.mark.parametrize("vocab", [5, 159, 160, 161, 1600, 1723])
@pytest.mark.parametrize("count", [1, 4])
def test_the_greatest_of_a_vocabulary_are_those_of_topk(vocab: int, count: int) -> None:
    scores = torch.randperm(6 * vocab, generator=torch.Generator().manual_seed(vocab)).float().view(2, 3, vocab)
    for values in (scores, scores.masked_fill(scores % 3 > 0, -torch.inf)):
        expected = values.topk(count)
        found, places = top(values, count)
        assert torch.equal(found, expected.values)
        assert torch.equal(values.gather(-1, places), found)
        assert len({*places[0, 0].tolist()}) == count
