import numpy as np
import pytest

from aiayn.data.batching import TokenBatchSampler
from aiayn.data.mixture import Mixture
from aiayn.data.ragged import EncodedPairs, Ragged
from aiayn.data.step_size import StepSize, accumulation_steps, steps_in_epoch


def corpus_of(lengths: list[int]) -> EncodedPairs:
    """Pairs of `length` source tokens and one target token more, EOS not counted."""
    source, target = ([np.full(length + more, 7, np.int32) for length in lengths] for more in (0, 1))
    return EncodedPairs(Ragged.join(source), Ragged.join(target))


def test_a_step_is_said_to_hold_what_its_batches_hold_on_average() -> None:
    lengths = np.random.default_rng(1).integers(3, 29, 1009)
    pairs = corpus_of(lengths.tolist())
    step = StepSize.of(pairs, 331)
    source, target = lengths + 1, lengths + 2
    sampler = TokenBatchSampler(source, target, tokens_per_batch=331)
    assert step.source_tokens == pytest.approx(np.mean([source[rows].sum() for rows, _ in sampler]))
    assert step.target_tokens == pytest.approx(np.mean([tokens for _, tokens in sampler]))
    assert step.shortfall > 0.02
    enough = StepSize.of(pairs, step.enough)
    assert (enough.source_tokens + enough.target_tokens) / 2 == pytest.approx(331, rel=0.02)


@pytest.mark.parametrize(("pairs", "least"), [(503, 20), (23, 20), (13, 13)])
def test_a_small_corpus_has_twenty_steps_or_one_a_pair(pairs: int, least: int) -> None:
    corpus = corpus_of([11] * pairs)
    lowered = StepSize.of(corpus, 100_003, fits_corpus=True).tokens_per_batch
    cost = np.full(pairs, 13)
    once = Mixture.once(pairs)
    assert steps_in_epoch(cost, lowered, once) >= least > steps_in_epoch(cost, 100_003, once)
    assert StepSize.of(corpus, 100_003).tokens_per_batch == 100_003


def test_the_budget_stays_where_the_corpus_has_steps_enough() -> None:
    assert StepSize.of(corpus_of([11] * 503), 101, fits_corpus=True).tokens_per_batch == 101


@pytest.mark.parametrize(
    ("tokens_per_batch", "tokens_per_device", "world_size", "expected"),
    [(25000, None, 8, 1), (25000, 25000, 1, 1), (25000, 24999, 1, 2), (25000, 6500, 1, 4), (25000, 6500, 2, 2)],
)
def test_accumulation_is_the_least_that_fits_a_device(
    tokens_per_batch: int, tokens_per_device: int | None, world_size: int, expected: int
) -> None:
    settings = {"world_size": world_size, "longest": 211}
    assert accumulation_steps(tokens_per_batch, tokens_per_device, **settings) == expected
    if tokens_per_device is not None and expected > 1:
        share = tokens_per_batch / (world_size * (expected - 1))
        assert share + 211 > tokens_per_device


def test_a_device_that_holds_no_pair_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.tokens_per_device=23 is smaller than the longest pair \(23 tokens\)"):
        accumulation_steps(211, 23, world_size=1, longest=23)
