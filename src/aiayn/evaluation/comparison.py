"""Two systems on one test set: by how much they differ, whether by more than chance, and where.

Strings in, numbers out, for any metric. The tests are sacreBLEU's own, its draws too: paired bootstrap, one-tailed, and
approximate randomisation. A word is here a run of letters and digits, as written.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import CHRF

from aiayn.evaluation.metric import Metric, counted
from aiayn.evaluation.significance import RESAMPLES, SEED, TRIALS, resampled_sums, share_above, swapped_sums

LENGTHS = (5, 10, 15, 20, 30, 40, 60)  # words of a source: the last of each bucket but the open one
FREQUENCIES = (0, 1, 5, 20, 100)  # of a word in the training text, likewise
words = re.compile(r"\w+").findall


@dataclass(frozen=True)
class Difference:
    """A score of two systems, and the chance of such a difference between equal ones.

    Attributes:
        name: Of the score.
        scores: Of the first system and of the second.
        bootstrap: One-tailed p-value of paired bootstrap resampling (Koehn 2004).
        randomisation: Two-sided p-value of paired approximate randomisation (Riezler and Maxwell 2005).
        signature: How the scores were counted; `bs`, `ar` and `seed` are of the tests.
    """

    name: str
    scores: tuple[float, float]
    bootstrap: float
    randomisation: float
    signature: str


@dataclass(frozen=True)
class Bucket:
    """A part of the test set.

    Attributes:
        name: `6 to 10`, in the unit of what it is cut by.
        size: Sentences or words in it.
        figures: One for each system.
    """

    name: str
    size: int
    figures: tuple[float, ...]


def differences(
    metrics: Iterable[Metric],
    one: list[str],
    other: list[str],
    references: list[str],
    *,
    language: str | None,
    trials: int = TRIALS,
) -> list[Difference]:
    """Scores of two systems, with p-values.

    A p-value is of sentences alone: to train again changes the difference too. Where nothing that a score counts
    differs, the two are apart in no sample, and it is 1.

    Args:
        metrics: What is counted.
        one: Outputs of the first system.
        other: Of the second.
        references: One for each.
        language: Of the references, as an ISO code; None where it is unknown.
        trials: Of the randomisation.
    """
    found = []
    for metric in metrics:
        (score, counts), (theirs, their_counts) = (counted(metric, of, [references], language) for of in (one, other))
        p_bootstrap = p_randomisation = 1.0
        if not np.array_equal(counts, their_counts):
            observed = abs(score.value - theirs.value)
            resampled = metric.value(resampled_sums([counts, their_counts]))
            distances = np.abs(resampled[0] - resampled[1])
            p_bootstrap = share_above(distances - distances.mean(), observed)
            swapped = [metric.value(sums) for sums in swapped_sums(counts, their_counts, trials)]
            p_randomisation = share_above(np.abs(swapped[0] - swapped[1]), observed)
        signature = f"{score.signature}|bs:{RESAMPLES}|ar:{trials}|seed:{SEED}"
        found.append(Difference(score.name, (score.value, theirs.value), p_bootstrap, p_randomisation, signature))
    return found


def sentence_scores(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """chrF of every sentence, `(sentences,)`; not BLEU, which without a common 4-gram is what its smoothing says."""
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return np.array([metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs])


def most_apart(gains: np.ndarray, count: int) -> list[int]:
    """Sentences with the largest positive gains, at most `count`, the largest first; the earlier one of equals."""
    order = np.argsort(-gains, kind="stable")[:count]
    return [int(number) for number in order if gains[number] > 0]


def score_by_length(
    metric: Metric,
    sources: Sequence[str],
    references: list[str],
    systems: Sequence[list[str]],
    *,
    language: str | None,
) -> list[Bucket]:
    """The score of each system on the sources of each length, in words; lengths that no source has are left out."""
    places = np.searchsorted(LENGTHS, [len(words(source)) for source in sources])
    counts = [counted(metric, system, [references], language)[1] for system in systems]
    found = []
    for number, name in enumerate(bucket_names(LENGTHS)):
        inside = places == number
        if inside.any():
            values = (float(metric.value(system[inside].sum(0))) for system in counts)
            found.append(Bucket(name, int(inside.sum()), tuple(values)))
    return found


def occurrences(sentences: Iterable[str], vocabulary: Collection[str]) -> Counter[str]:
    """How often each word of the vocabulary is in the sentences, in one pass; memory grows with the vocabulary only."""
    counts: Counter[str] = Counter()
    wanted = frozenset(vocabulary).__contains__
    for sentence in sentences:
        counts.update(filter(wanted, words(sentence)))
    return counts


def words_by_frequency(
    references: Sequence[str], systems: Sequence[Sequence[str]], frequencies: Mapping[str, int]
) -> list[Bucket]:
    """The percentage of the references' words that each system has in that sentence, by their frequency in training.

    A word counts as often as it is in the reference, and is had at most as often as in the translation.

    Args:
        references: One for each sentence.
        systems: Translations of each.
        frequencies: Of words in the training text; what is missing was never seen.
    """
    names = bucket_names(FREQUENCIES)
    sizes, had = np.zeros(len(names), dtype=int), np.zeros((len(systems), len(names)))
    for reference, *hypotheses in zip(references, *systems, strict=True):
        wanted = Counter(words(reference))
        place = {word: np.searchsorted(FREQUENCIES, frequencies.get(word, 0)) for word in wanted}
        for word, count in wanted.items():
            sizes[place[word]] += count
        for row, hypothesis in zip(had, hypotheses, strict=True):
            for word, count in (wanted & Counter(words(hypothesis))).items():
                row[place[word]] += count
    return [
        Bucket(name, int(size), tuple(100 * row / size))
        for name, size, row in zip(names, sizes, had.T, strict=True)
        if size
    ]


def bucket_names(lasts: Sequence[int]) -> list[str]:
    """Names of buckets of whole numbers from 0 on, each but the open one given by its last number."""
    firsts = [0, *(last + 1 for last in lasts)]
    closed = [str(last) if first == last else f"{first} to {last}" for first, last in zip(firsts, lasts, strict=False)]
    return [*closed, f"more than {lasts[-1]}"]
