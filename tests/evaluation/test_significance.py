"""Statistics, BLEU and p-values against sacreBLEU's own; intervals against what they promise."""

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from aiayn.evaluation.significance import (
    Interval,
    bleu,
    difference,
    holm,
    p_value,
    perplexity,
    resampled_counts,
    resampled_sums,
    statistics,
)

SIGNATURE = "case:mixed|tok:13a"
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


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (corpus()[1], corpus()[0]),
        (["a cat sat on a mat"], ["a cat sat on the mat"]),
        (["a cat"], ["a cat"]),  # no 4-gram at all
        (["cat a mat on", "the dog ran under it"], ["a cat on a mat sat", "it ran under the dog"]),  # smoothed
        (["x y z v w"], ["a b c d e"]),  # nothing in common
        (["", "a cat sat on the mat"], ["a dog", "a cat sat on the mat"]),
        ([""], ["a dog"]),
        (["a cat sat on the mat", "and more words than that"], ["a cat sat on the mat", "and"]),  # too long
    ],
)
def test_bleu_of_summed_statistics_is_sacrebleus(hypotheses: list[str], references: list[str]) -> None:
    rows = statistics(hypotheses, references, SIGNATURE)
    assert rows.shape == (len(references), 10)
    assert rows.dtype == np.int64
    expected = BLEU(tokenize="13a").corpus_score(hypotheses, [references])
    assert rows.sum(0).tolist() == [*expected.counts, *expected.totals, expected.sys_len, expected.ref_len]
    assert bleu(rows.sum(0)) == pytest.approx(expected.score, abs=1e-9)


@pytest.mark.parametrize(
    "options", [{"tokenize": "zh"}, {"tokenize": "ja-mecab"}, {"tokenize": "13a", "lowercase": True}]
)
def test_counts_are_those_of_the_scores_own_tokenizer(options: dict) -> None:
    references = ["\u4ed6\u6628\u5929\u4e70\u4e86\u4e09\u672c\u65b0\u4e66", "The Cat, it ran on a mat"]
    hypotheses = ["\u4ed6\u6628\u5929\u4e70\u4e86\u4e24\u672c\u65b0\u4e66", "the cat, it ran on the mat"]
    metric = BLEU(**options)
    score = metric.corpus_score(hypotheses, [references])
    rows = statistics(hypotheses, references, str(metric.get_signature()))
    assert bleu(rows.sum(0)) == pytest.approx(score.score, abs=1e-9)
    assert score.score > 20


def test_a_signature_that_is_not_sacrebleus_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics.bleu must be counted with .*, got tok:moses-de-sacremoses"):
        statistics(["a"], ["a"], "nrefs:1|case:lc|tok:moses-de-sacremoses-0.2.0|smooth:none")


def test_bleu_takes_any_number_of_sums() -> None:
    references, good, bad = corpus()
    sums = np.stack([statistics(system, references, SIGNATURE).sum(0) for system in (good, bad)])
    expected = [BLEU().corpus_score(system, [references]).score for system in (good, bad)]
    np.testing.assert_allclose(bleu(sums), expected, atol=1e-9, rtol=0)
    assert bleu(np.zeros((3, 2, 12))).tolist() == [[0, 0]] * 3


def test_figures_of_the_paired_bootstrap_are_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    references, good, bad = corpus()
    other = [*good[:40], *bad[40:]]
    test = PairedTest(
        [("good", good), ("bad", bad), ("other", other)], {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000
    )
    _, results = test()
    rows = [statistics(system, references, SIGNATURE) for system in (good, bad, other)]
    observed = [float(bleu(row.sum(0))) for row in rows]
    resampled = bleu(resampled_sums(rows))
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
    twice = resampled_sums([statistics(good, references, SIGNATURE)] * 2)
    np.testing.assert_array_equal(twice[0], twice[1])


def test_a_resample_has_as_many_sentences() -> None:
    counts = resampled_counts(13, resamples=7)
    assert counts.shape == (7, 13)
    assert counts.sum(1).tolist() == [13] * 7
    systems = [np.arange(26.0).reshape(13, 2), np.ones((13, 2))]
    sums = resampled_sums(systems)
    np.testing.assert_allclose(sums[0], resampled_counts(13) @ systems[0])
    assert np.all(sums[1] == 13)


def test_perplexity_weighs_sentences_by_their_pieces() -> None:
    rows = np.zeros((2, 12))
    rows[:, 10:] = [[3.0, 1], [5.0, 7]]
    assert perplexity(rows.sum(0)) == pytest.approx(np.exp(8 / 8))


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


@pytest.mark.parametrize("sentences", [0.0, 1.0], ids=["seeds alone", "seeds and sentences"])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_systems_seldom_differ(seeds: int, sentences: float) -> None:
    rng = np.random.default_rng(1)
    deviation = sentences * math.sqrt(2 / seeds)  # of the difference; as large as what the seeds add
    resampled = [rng.normal(0, deviation, (1, 1000)), np.zeros((1, 1000))]
    wrong = 0
    for _ in range(1000):
        shift = rng.normal(0, deviation)
        found = difference([rng.normal(shift, 1, seeds), rng.normal(0, 1, seeds)], resampled)
        wrong += not found.low <= 0 <= found.high
    assert wrong / 1000 < 0.06


def test_unequal_numbers_of_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="must be as many, got 2 and 1"):
        statistics(["a", "b"], ["a"], SIGNATURE)


def test_holm_multiplies_by_the_number_of_tests_that_are_left():
    # The least of three by 3, the next by 2, the last by 1; never below the one before, never above 1.
    np.testing.assert_allclose(holm(np.array([[0.04, 0.01, 0.03]])), [[0.06, 0.03, 0.06]])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1, 1])
