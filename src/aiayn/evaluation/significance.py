"""Whether two systems differ by more than chance: paired bootstrap resampling over sentences, with sacreBLEU's draws.

A corpus BLEU is a function of ten counts summed over sentences, a perplexity of two. So each sentence is kept as a row
of such statistics, a resample of the test set is a weighted sum of rows, and all resamples of all systems are one
matrix product; no text is needed. Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from aiayn.evaluation.metric import counted_like

RESAMPLES = 1000  # sacreBLEU's default, as is the seed
SEED = 12345
BLEU_COLUMNS = 10  # correct 1- to 4-grams, total 1- to 4-grams, length of hypothesis and reference
COLUMNS = 12  # and the reference's summed negative log-likelihood (nats), and its pieces with EOS


def statistics(hypotheses: Sequence[str], references: Sequence[str], signature: str) -> np.ndarray:
    """What BLEU counts in each sentence.

    Args:
        hypotheses: The translations, as plain text.
        references: One for each, in the same order.
        signature: Of the corpus's score, which says how it is tokenised and whether case counts.

    Returns:
        Integers, `(sentences, 10)`: correct 1-, 2-, 3-, 4-grams; all of the hypothesis's; tokens of hypothesis and
        reference. Their sum gives the corpus's `bleu`.

    Raises:
        ValueError: if the two differ in length, or the signature is not of sacreBLEU's BLEU.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be as many, got {len(hypotheses)} and {len(references)}; "
            f"give one reference for each hypothesis."
        )
    metric = counted_like(signature)
    metric.effective_order = True  # changes the sentence's score, which is not looked at
    scores = [metric.sentence_score(line, [reference]) for line, reference in zip(hypotheses, references, strict=True)]
    rows = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
    return np.array(rows, dtype=np.int64).reshape(-1, BLEU_COLUMNS)


def bleu(sums: np.ndarray) -> np.ndarray:
    """Corpus BLEU from summed statistics, with sacreBLEU's exponential smoothing.

    Args:
        sums: `(..., at least 10)`; `statistics` summed over the sentences of a corpus.

    Returns:
        Between 0 and 100, `(...)`.
    """
    correct, total = sums[..., :4], sums[..., 4:8]
    hypothesis, reference = sums[..., 8], sums[..., 9]
    halvings = np.cumsum(correct == 0, axis=-1)  # an n-gram order without a match counts 1/2, the next one 1/4, ...
    matches = np.where(correct > 0, correct, 0.5**halvings)
    precisions = matches / np.maximum(total, 1)
    brevity = np.exp(np.minimum(0, 1 - reference / np.maximum(hypothesis, 1)))
    defined = correct.any(-1) & (total > 0).all(-1)  # else sacreBLEU has 0
    return np.where(defined, 100 * brevity * np.exp(np.log(precisions).mean(-1)), 0.0)


def perplexity(sums: np.ndarray) -> np.ndarray:
    """Perplexity per target piece from summed statistics, `(..., 12)`; returns `(...)`."""
    return np.exp(sums[..., 10] / sums[..., 11])


@lru_cache(maxsize=4)
def resampled_counts(sentences: int, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """How often each sentence is in each resample, `(resamples, sentences)`; the very draws of sacreBLEU."""
    drawn = np.random.default_rng(seed).choice(sentences, size=(resamples, sentences), replace=True)
    cells = drawn + sentences * np.arange(resamples)[:, None]
    return np.bincount(cells.ravel(), minlength=resamples * sentences).reshape(resamples, sentences).astype(float)


def resampled_sums(systems: Sequence[np.ndarray], resamples: int = RESAMPLES) -> np.ndarray:
    """Statistics of the systems summed over every resample; all see the same resamples.

    Args:
        systems: Of each, `(sentences, columns)`, with the same sentences in the same order.
        resamples: How many.

    Returns:
        `(systems, resamples, columns)`.
    """
    sentences, columns = systems[0].shape
    sums = resampled_counts(sentences, resamples) @ np.concatenate(systems, axis=1)
    return np.moveaxis(sums.reshape(-1, len(systems), columns), 1, 0)


def p_value(difference: float, resampled: np.ndarray) -> float:
    """The chance of at least such a difference, in either direction, between systems of equal quality.

    It is of sentences alone: to train again changes the difference too. Systems without any difference have 1.
    (sacreBLEU's paired bootstrap has another count, which is one-tailed: for clear differences it is half of this.)

    Args:
        difference: Of the two systems on the whole test set.
        resampled: Their difference on every resample, `(resamples,)`; how far from their mean these are tells how far
            from zero chance alone would bring the difference.
    """
    as_far = np.sum(np.abs(resampled - resampled.mean()) >= abs(difference))
    return (int(as_far) + 1) / (len(resampled) + 1)


def holm(p_values: np.ndarray) -> np.ndarray:
    """p-values of the same shape, adjusted for how many they are (Holm 1979).

    Whatever is then below 0.05 differs, with a chance of at most 5 % that any of it does so by chance alone.
    """
    order = np.argsort(p_values, axis=None)
    adjusted = np.maximum.accumulate(p_values.ravel()[order] * np.arange(len(order), 0, -1))
    result = np.empty(len(order))
    result[order] = np.minimum(adjusted, 1)
    return result.reshape(p_values.shape)


@dataclass(frozen=True)
class Interval:
    """An observed value, and what its 95 % confidence interval and its p-values follow from.

    Attributes:
        value: As observed.
        error: Its standard error.
        freedom: Degrees of freedom of Student's t; infinite for the normal distribution.
    """

    value: float
    error: float = 0.0
    freedom: float = math.inf

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        from scipy.special import stdtrit  # here, as in `p_above`: scipy takes as long to import as all the rest

        return float(stdtrit(self.freedom, 0.975)) * self.error

    @property
    def low(self) -> float:
        """The lower end."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value + self.half

    def p_above(self, bound: float) -> float:
        """One-sided: the chance of so high a value, or a higher one, if the true one is the bound, or below it."""
        from scipy.special import stdtr

        apart = self.value - bound
        return float(stdtr(self.freedom, -apart / self.error)) if self.error else float(apart <= 0)

    def p_below(self, bound: float) -> float:
        """One-sided: likewise of so low a value."""
        return replace(self, value=-self.value).p_above(-bound)


def difference(figures: Sequence[np.ndarray], resampled: Sequence[np.ndarray]) -> Interval:
    """The first system's figure minus the second's, means over seeds, with its interval.

    Sentences add the variance of the resamples of the difference; seeds, where both systems have several, that of each
    system's mean, with Welch's degrees of freedom (Welch 1947, Satterthwaite 1946). With a single seed the spread of
    training is unknown and not in the interval.

    There are never more degrees of freedom than the seeds have. Satterthwaite's estimate alone grows without a bound
    where two seeds lie close by chance: their variance then looks small beside that of the sentences, as if it were
    known. Of thirteen claims about equal rows, corrected together, one was decided in up to 15 % of the reports.

    Args:
        figures: Of each of the two, on all sentences, `(seeds,)`.
        resampled: Of each of the two, the same resamples, `(seeds, resamples)`.
    """
    value = float(figures[0].mean() - figures[1].mean())
    variance = float(np.var(resampled[0].mean(0) - resampled[1].mean(0), ddof=1))
    freedom, uncertain = math.inf, 0.0
    if min(map(len, figures)) > 1:
        for seeds in figures:
            of_mean = float(np.var(seeds, ddof=1)) / len(seeds)
            variance += of_mean
            uncertain += of_mean**2 / (len(seeds) - 1)
        freedom = sum(len(seeds) - 1 for seeds in figures)
    if uncertain:
        freedom = min(freedom, variance**2 / uncertain)
    return Interval(value, variance**0.5, freedom)
