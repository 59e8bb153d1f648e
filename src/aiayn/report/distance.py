"""How far rows are from base, by every metric, from what their evaluations keep of each sentence."""

from collections.abc import Sequence

import numpy as np

from aiayn.evaluation import significance
from aiayn.report.rows import Row, base_of
from aiayn.report.statistics import same_sentences
from aiayn.runs.run import HELD_OUT


def bootstrap(rows: Sequence[Row]) -> None:
    """Fill `samples`, `apart` and `p_values` of the rows from the statistics that their runs left.

    All see the same resamples.
    """
    every = dict.fromkeys(name for row in rows for name in row.metrics)
    for name in every:
        by_shape: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            if row.statistics and name in row.statistics[0]:
                by_shape.setdefault(row.statistics[0][name].shape, []).append(row)
        for together in by_shape.values():
            sums = iter(significance.resampled_sums([of[name] for row in together for of in row.statistics or []]))
            for row in together:
                row.samples[name] = row.metrics[name].value(np.stack([next(sums) for _ in row.done]))
    base = base_of(rows)
    for row in rows:
        for name in every if row is not base else ():
            if comparable(row, base, name):
                row.apart[name] = row.minus(base, name)
                if len(row.done) == len(base.done) == 1:
                    resampled = row.samples[name][0] - base.samples[name][0]
                    row.p_values[name] = significance.p_value(row.apart[name].value, resampled)


def comparable(row: Row, other: Row, metric: str) -> bool:
    """Whether both have counts of the same sentences by the same metric; for likelihoods, of as many pieces."""
    if not row.statistics or not other.statistics or not same_sentences(row.statistics[0], other.statistics[0]):
        return False
    entries = [one.config["metrics"].get(metric) for one in (row, other) if metric in one.samples]
    if len(entries) < 2 or entries[0] != entries[1]:
        return False
    one, two = row.statistics[0][metric], other.statistics[0][metric]
    return metric not in ("perplexity", HELD_OUT) or np.array_equal(one[:, 1], two[:, 1])
