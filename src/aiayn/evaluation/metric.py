"""What a score is: counts of sentences, which add up, and what their sums come to.

A corpus score is `value(counts.sum(0))`. So the sums of any sentences, of those of a resample for one, have a score
too, and what is measured by whatever metric is tested, compared and shown alike (`significance`). A score is comparable
only to one that was counted alike, so each carries its signature.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreBleuMetric  # the tables of a sweep need none

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Score:
    """A figure, and how it was counted."""

    name: str
    value: float
    signature: str
    higher_is_better: bool = True

    def __str__(self) -> str:
        return f"{self.shown} ({self.signature})"

    @property
    def shown(self) -> str:
        """Without the signature."""
        return f"{self.name} {self.value:.{digits([self.value])}f}"


def digits(values: Iterable[float]) -> int:
    """Decimals of scores that stand together: two; four where they are shares, at most 1, and no percentages."""
    return 4 if 0 < max(map(abs, values), default=0) <= 1 else 2


class Metric(Protocol):
    """What a file of conf/metrics names.

    Attributes:
        name: As people write it: BLEU.
        higher_is_better: Whether the greater of two values is the better one.
    """

    name: str
    higher_is_better: bool

    def signature(self, language: str | None, references: int = 1) -> str:
        """How it is counted; asked before the work that is to be scored, so what is missing shows here.

        Args:
            language: Of the text, as an ISO code; None where it is unknown.
            references: How many there are of each sentence.

        Raises:
            LanguageError: if it has no rules for the language.
            ValueError: if something else is missing, a package for one.
        """

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """What is counted in each sentence.

        Args:
            hypotheses: Plain text.
            references: A list for each set, in the order of the hypotheses, and as long.
            language: As for the signature.

        Returns:
            Numbers, `(sentences, columns)`; a corpus has their sum.

        Raises:
            ValueError: as for the signature, or if it cannot score this text.
        """

    def value(self, sums: np.ndarray) -> np.ndarray:
        """What summed counts come to, `(..., columns)` to `(...)`."""


class LanguageError(ValueError):
    """A metric has no rules for this language."""


def counted(
    metric: Metric, hypotheses: list[str], references: list[list[str]], language: str | None
) -> tuple[Score, np.ndarray]:
    """The score of a corpus, and the counts that it is the value of.

    Raises:
        ValueError: if the lists differ in length, are empty or hold anything but strings; if the counts are not those
            of each sentence; or as the metric.
    """
    _check(hypotheses, references)
    # Copies: what a metric does to its lists is not the others' business.
    counts = np.asarray(metric.counts(list(hypotheses), [list(lines) for lines in references], language))
    if counts.ndim != 2 or len(counts) != len(hypotheses):
        raise ValueError(
            f"{type(metric).__name__}.counts must give a row of numbers for each sentence, "
            f"({len(hypotheses)}, columns), got {counts.shape}."
        )
    if not isinstance(metric.name, str):
        raise ValueError(f"{type(metric).__name__}.name must be a text, got {metric.name!r}.")
    counts = counts.astype(int) if counts.dtype == bool else counts
    if counts.dtype.kind not in "iuf" or not np.isfinite(counts).all():
        raise ValueError(
            f"{type(metric).__name__}.counts must give finite numbers, got {counts.dtype}"
            f"{', NaN or infinity among them' if counts.dtype.kind == 'f' else ''}."
        )
    return score_of(metric, counts, metric.signature(language, len(references))), counts


def score_of(metric: Metric, counts: np.ndarray, signature: str) -> Score:
    """The score that counts of sentences come to, `(sentences, columns)`."""
    return Score(metric.name, float(metric.value(counts.sum(0))), signature, metric.higher_is_better)


def panel(
    metrics: Mapping[str, Metric], count: Callable[[Metric], tuple[Score, np.ndarray]], *, name: str, objective: str
) -> tuple[dict[str, Score], dict[str, np.ndarray]]:
    """Scores and counts by key; a metric that refuses says why and is left out, since decoding was dear.

    TER, which may take minutes, is counted when the objective of `name` is logged.
    """
    scores: dict[str, Score] = {}
    counts = {}
    for key, metric in ter_last(metrics).items():
        if key == "ter" and objective in scores:
            log.info("%s: %s; TER is counted", name, scores[objective].shown)
        try:
            scores[key], counts[key] = count(metric)
        except ValueError as error:
            log.warning("%s is left out: %s", key, error)
    return {key: scores[key] for key in metrics if key in scores}, counts


def usable(
    metrics: Mapping[str, Metric],
    language: str | None,
    *,
    left_out: type[ValueError] | tuple[type[ValueError], ...] = ValueError,
) -> dict[str, Metric]:
    """The metrics that can score a language; of the others it is said what they lack, before minutes have passed.

    Args:
        metrics: By key.
        language: Of the text.
        left_out: Errors for which a metric is left out; others are raised.
    """
    found = {}
    for key, metric in metrics.items():
        try:
            metric.signature(language)
            found[key] = metric
        except left_out as error:
            log.warning("%s is left out: %s", key, error)
    return found


def ter_last(chosen: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics in their order, but TER at the end, so that the other scores need not wait for it."""
    return dict(sorted(chosen.items(), key=lambda metric: metric[0] == "ter"))


class CountedBySacreBleu(ABC):
    """A metric whose counts are sacreBLEU's own; its `value` is sacreBLEU's to the last digit, for any sums at once."""

    name: str
    higher_is_better = True

    @abstractmethod
    def counter(self, language: str | None) -> "SacreBleuMetric":
        """The class of sacreBLEU that counts, as it is for a language."""

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        counter = self.counter(language)
        counter.num_refs = references
        return str(counter.get_signature())

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """See `Metric`."""
        return np.array(self.counter(language)._extract_corpus_statistics(hypotheses, references))

    @abstractmethod
    def value(self, sums: np.ndarray) -> np.ndarray:
        """See `Metric`."""


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not references:
        raise ValueError("there must be at least one set of references, got none.")
    for lines in references:
        if isinstance(lines, str):
            raise ValueError("references must be a list for each set, got strings; give [references] for a single one.")
        if len(hypotheses) != len(lines):
            raise ValueError(
                f"hypotheses and references must be as many, got {len(hypotheses)} hypotheses and {len(lines)} "
                "references; give one reference of each set for each hypothesis, in the same order."
            )
    if not hypotheses:
        raise ValueError("there must be something to score, got 0 hypotheses and 0 references; is the split empty?")
    for name, lines in (("hypotheses", hypotheses), *(("references", lines) for lines in references)):
        for number, line in enumerate(lines):
            if not isinstance(line, str):
                raise ValueError(
                    f"{name} must be strings, got {type(line).__name__} at {number}; give one string for each sentence."
                )
