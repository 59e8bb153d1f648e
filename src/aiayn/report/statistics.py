"""What evaluations keep for each sentence, and the metrics that make figures of it, in folders of anyone."""

import json
import logging
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np
from hydra.errors import HydraException
from hydra.utils import instantiate

from aiayn.evaluation.metric import Metric
from aiayn.trust import check_named, ours

log = logging.getLogger(__name__)


class HeldOut:
    """ln P of a held-out sentence, unsmoothed, on average over dev and all test sets, in nats.

    Less noisy than BLEU: more sentences, and of each how likely it is, not only what the search has found. Made of what
    perplexity counts: the nats, the pieces and a 1 for each sentence, `(sentences, 3)`.
    """

    name = "held-out ln P"
    higher_is_better = True

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        return "unit:sentence|eos:yes|smooth:none"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Always refused with a ValueError: text alone has no probabilities."""
        raise ValueError("ln P is of a model's probabilities, which text alone has not.")

    def value(self, sums: np.ndarray) -> np.ndarray:
        """In nats, below 0."""
        return -sums[..., 0] / sums[..., 2]


def read_statistics(file: Path) -> dict[str, np.ndarray]:
    """What an evaluation kept for each sentence: each metric's counts by its key, and `references`, their checksums.

    A metric that has anything but numbers for each sentence is left out with a warning.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is anything else, lacks the checksums, or is less than its headers say.
    """
    found = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            references = checked(arrays["references"], rows=None)
            for key in arrays.files:
                try:
                    found[key] = references if key == "references" else checked(arrays[key], rows=len(references))
                except ValueError as error:
                    log.warning("%s has no usable counts of %s, so it has no intervals: %s", file, key, error)
    except (
        EOFError,
        OverflowError,
        KeyError,
        TypeError,
        AttributeError,
        MemoryError,
        RecursionError,
        BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"it is no file of arrays with the references' checksums ({error})") from error
    return found


def checked(array: np.ndarray, *, rows: int | None) -> np.ndarray:
    """Counts that are numbers for each of so many sentences; None: checksums, one for each of any number of them.

    Raises:
        ValueError: if they are not.
    """
    if array.dtype.kind == "b":
        array = array.astype(int)
    if array.dtype.kind not in "fiu" or array.ndim != (1 if rows is None else 2) or rows not in (None, len(array)):
        raise ValueError(f"they must be numbers for each sentence, not {array.shape} of {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError("there are NaN or infinite numbers")
    return array


def fitting(counts: dict[str, np.ndarray], metrics: Mapping[str, Metric], file: Path) -> dict[str, np.ndarray]:
    """The counts of these metrics, and the references' checksums; of what does not fit its metric it is said."""
    found = {"references": counts["references"]}
    for key in metrics.keys() & counts.keys():
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # which is said in words
                value = metrics[key].value(counts[key].sum(0))
            if not np.isfinite(value):
                raise ValueError("their value is no number")
            found[key] = counts[key]
        except (ValueError, IndexError, TypeError) as error:
            log.warning("%s has counts of %s that do not fit it, so it has no intervals: %s", file, key, error)
    return found


@cache
def metric_of(key: str, entry: str, trust: tuple[str, ...] | None) -> Metric | None:
    """The metric of a config's entry, written as JSON; None where it may not or cannot be built, which is said once.

    Args:
        key: Of the entry.
        entry: With the class and its options.
        trust: Packages that it may come from besides ours; None: any, as it is the command line's own.
    """
    described = json.loads(entry)
    try:
        if trust is not None:
            check_named(described, ours=ours("metrics").__contains__, trust=trust, what=f"metrics.{key}")
        return cast(Metric, instantiate(described))
    except (ValueError, HydraException) as error:
        log.warning("metrics.%s has no intervals: %s", key, " ".join(str(error).split()))
        return None


def same_sentences(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two statistics have the same references, as far as their checksums tell."""
    return len(one["references"]) > 0 and np.array_equal(one["references"], other["references"])
