"""p-values against sacreBLEU's own; intervals against what they promise."""

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy.stats import ttest_rel

from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.significance import (
    Interval,
    difference,
    holm,
    p_value,
    resampled_counts,
    resampled_sums,
    swapped_sums,
)

METRIC = Bleu()
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    ",",
    ".",
    "\u00fcber",
    "U.S.",
    "3,5",
    "don't",
    "well-known",
]


def corpus(sentences: int = 61) -> tuple[list[str], list[str], list[str]]:
    """References, and a good and a bad system."""
    rng = random.Random(1)
    references = [" ".join(rng.choices(WORDS, k=rng.randint(1, 17))) for _ in range(sentences)]

    def system(errors: float) -> list[str]:
        return [
            " ".join(
                rng.choice(WORDS) if rng.random() < errors else word for word in line.split()[: rng.randint(5, 20)]
            )
            for line in references
        ]

    return references, system(0.15), system(0.25)


def counts(system: list[str], references: list[str]) -> np.ndarray:
    return METRIC.counts(system, [references], None)


def test_figures_of_the_paired_bootstrap_are_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    references, good, bad = corpus()
    other = [*good[:40], *bad[40:]]
    test = PairedTest(
        [("good", good), ("bad", bad), ("other", other)], {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000
    )
    _, results = test()
    rows = [counts(system, references) for system in (good, bad, other)]
    observed = [float(METRIC.value(row.sum(0))) for row in rows]
    resampled = METRIC.value(resampled_sums(rows))
    assert resampled.shape == (3, 1000)
    for index, theirs in enumerate(results["BLEU"]):
        assert observed[index] == pytest.approx(theirs.score, abs=1e-9)
        assert resampled[index].mean() == pytest.approx(theirs.mean, abs=1e-4)  # theirs is counted in float32


def test_p_is_the_share_of_resamples_that_are_as_far_from_their_mean() -> None:
    resampled = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert p_value(2.0, resampled) == p_value(-2.0, resampled) == pytest.approx((2 + 1) / 6)
    assert p_value(0.5, resampled) == pytest.approx((4 + 1) / 6)
    assert p_value(9.0, resampled) == pytest.approx(1 / 6)  # never zero
    assert p_value(0.0, resampled) == 1


def test_of_equal_systems_as_many_have_p_below_a_level_as_the_level_says() -> None:
    rng = np.random.default_rng(1)
    sentences, trials = 397, 2000
    draws = resampled_counts(sentences)
    apart = rng.standard_t(5, (sentences, trials))  # of two equal systems, what each sentence adds
    p = np.array([p_value(apart[:, trial].sum(), draws @ apart[:, trial]) for trial in range(trials)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(p < level) == pytest.approx(level, abs=3.5 * math.sqrt(level * (1 - level) / trials))


def test_a_system_does_not_differ_from_itself() -> None:
    assert p_value(0.0, np.zeros(1000)) == 1
    references, good, _ = corpus()
    twice = resampled_sums([counts(good, references)] * 2)
    np.testing.assert_array_equal(twice[0], twice[1])


def test_a_resample_has_as_many_sentences() -> None:
    counts = resampled_counts(13, resamples=7)
    assert counts.shape == (7, 13)
    assert counts.sum(1).tolist() == [13] * 7
    systems = [np.arange(26.0).reshape(13, 2), np.ones((13, 2))]
    sums = resampled_sums(systems)
    np.testing.assert_allclose(sums[0], resampled_counts(13) @ systems[0])
    assert np.all(sums[1] == 13)


def test_a_trial_swaps_the_outputs_of_about_half_of_the_sentences() -> None:
    one, other = np.eye(7), np.zeros((7, 7))  # what is in one is seen
    first, second = swapped_sums(one, other, 2003)
    np.testing.assert_array_equal(first + second, np.ones((2003, 7)))
    assert set(first.ravel()) == {0, 1}
    assert first.mean() == pytest.approx(0.5, abs=0.02)


# NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2: 97.5 % quantiles.
@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (30, 2.042), (31, 2.040), (100, 1.984), (math.inf, 1.960)]
)
def test_the_interval_is_students_t(freedom: float, quantile: float) -> None:
    found = Interval(7, 1, freedom)
    assert (found.high - 7, 7 - found.low) == pytest.approx((quantile, quantile), abs=5e-4)
    assert (found.p_above(found.low), found.p_below(found.high)) == pytest.approx((0.025, 0.025))
    assert found.p_above(7) == pytest.approx(0.5)
    assert (Interval(7).p_above(6.9), Interval(7).p_above(7), Interval(7).p_below(7.1)) == (0, 1, 0)


def test_with_one_seed_the_interval_is_that_of_the_sentences() -> None:
    resampled = np.random.default_rng(1).normal([[3.0], [2.0]], [[0.3], [0.4]], (2, 100_000))
    found = difference([np.array([3.0]), np.array([2.0])], [resampled[:1], resampled[1:]])
    assert found.value == 1
    assert (found.low, found.high) == pytest.approx((1 - 1.96 * 0.5, 1 + 1.96 * 0.5), abs=0.01)
    several = difference([np.array([3.0]), np.array([1.0, 3.0])], [resampled[:1], resampled[[1, 1]]])
    assert several == found  # two seeds of one of the two do not tell how the other's spread


def test_two_seeds_of_each_have_the_spread_of_their_means() -> None:
    still = np.zeros((2, 5))
    found = difference([np.array([1.0, 3.0]), np.array([0.0, 0.0])], [still, still])
    assert (found.value, found.high - found.value) == pytest.approx((2, 12.706), abs=0.001)
    assert difference([still[:, 0], still[:, 0]], [still, still]).high == 0


def test_five_pairs_of_the_same_seeds_have_the_spread_of_their_differences() -> None:
    rng = np.random.default_rng(1)
    luck, still = rng.normal(0, 1, 5), np.zeros((5, 3))
    both = [luck + 0.3 + rng.normal(0, 0.1, 5), luck + rng.normal(0, 0.1, 5)]
    found = difference(both, [still, still], same_seeds=True)
    known = ttest_rel(*both)
    assert (found.low, found.high) == pytest.approx(known.confidence_interval())
    assert found.p == pytest.approx(known.pvalue)
    assert found.half < difference(both, [still, still]).half / 3
    four = [one[:4] for one in both], [still[:4]] * 2
    assert difference(*four, same_seeds=True) == difference(*four)


@pytest.mark.parametrize("same_seeds", [False, True])
@pytest.mark.parametrize("sentences", [0.0, 1.0], ids=["seeds alone", "seeds and sentences"])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_systems_seldom_differ(seeds: int, sentences: float, same_seeds: bool) -> None:
    rng = np.random.default_rng(1)
    deviation = sentences * math.sqrt(2 / seeds)  # of the difference; as large as what the seeds add
    resampled = [rng.normal(0, deviation, (1, 1000)), np.zeros((1, 1000))]
    wrong = 0
    for _ in range(1000):
        shift = rng.normal(0, deviation)
        figures = [rng.normal(shift, 1, seeds), rng.normal(0, 1, seeds)]
        found = difference(figures, resampled, same_seeds=same_seeds)
        wrong += not found.low <= 0 <= found.high
    assert wrong / 1000 < 0.06


def test_holm_multiplies_by_the_number_of_tests_that_are_left():
    # The least of three by 3, the next by 2, the last by 1; never below the one before, never above 1.
    np.testing.assert_allclose(holm(np.array([[0.04, 0.01, 0.03]])), [[0.06, 0.03, 0.06]])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1, 1])
