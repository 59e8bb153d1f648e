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
from aiayn.trust import METRICS, check_named

log = logging.getLogger(__name__)


def read_statistics(file: Path) -> dict[str, np.ndarray]:
    """What an evaluation kept for each sentence: each metric's counts by its key, and `references`, their checksums.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is anything else, or less than its headers say.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files}
    except (
        EOFError,
        OverflowError,
        TypeError,
        AttributeError,
        MemoryError,
        RecursionError,
        BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"it is no file of arrays ({error})") from error
    if len({len(array) for array in found.values() if array.ndim}) != 1 or "references" not in found:
        raise ValueError("it must hold the references' checksums, and as many rows of each metric")
    for key, array in found.items():
        if array.dtype.kind not in "fiu" or array.ndim != (1 if key == "references" else 2):
            raise ValueError(f"{key} must be numbers for each sentence, not {array.shape} of {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"{key} has NaN or infinite numbers")
    return found


def fitting(counts: dict[str, np.ndarray], metrics: Mapping[str, Metric], file: Path) -> dict[str, np.ndarray]:
    """The counts of these metrics, and the references' checksums; of what does not fit its metric it is said."""
    found = {"references": counts["references"]}
    for key in metrics.keys() & counts.keys():
        try:
            if not np.isfinite(metrics[key].value(counts[key].sum(0))):
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
            check_named(described, ours=METRICS.__contains__, trust=trust, what=f"metrics.{key}")
        return cast(Metric, instantiate(described))
    except (ValueError, HydraException) as error:
        log.warning("metrics.%s has no intervals: %s", key, " ".join(str(error).split()))
        return None


def same_sentences(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two statistics have the same references, as far as their checksums tell."""
    return len(one["references"]) > 0 and np.array_equal(one["references"], other["references"])
