"""How far rows are from base, by every metric, from what their evaluations keep of each sentence."""

from collections.abc import Sequence

import numpy as np

from aiayn.evaluation import significance
from aiayn.report.rows import Row, base_of
from aiayn.report.statistics import same_sentences
from aiayn.runs.run import HELD_OUT


def bootstrap(rows: Sequence[Row]) -> None:
    """Fill `samples`, `apart` and `p_values` of the rows from the statistics that their runs left.

    All see the same resamples. All rows are compared with one base, so their p-values are corrected together (Holm);
    a row has none where one of the two alone has several seeds.
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
    for name in every:
        beside = [row for row in rows if row is not base and comparable(row, base, name)]
        for row in beside:
            row.apart[name] = row.minus(base, name)
        tested = [row for row in beside if (len(row.done) == 1) == (len(base.done) == 1)]
        corrected = significance.holm(np.array([p_value(row, base, name) for row in tested]))
        for row, p in zip(tested, corrected.tolist(), strict=True):
            row.p_values[name] = p


def p_value(row: Row, base: Row, metric: str) -> float:
    """Of their distance, two-sided: of single runs over sentences alone, else over seeds too."""
    apart = row.apart[metric]
    if len(row.done) > 1:
        return apart.p
    return significance.p_value(apart.value, row.samples[metric][0] - base.samples[metric][0])


def comparable(row: Row, other: Row, metric: str) -> bool:
    """Whether both have counts of the same sentences by the same metric; for likelihoods, of as many pieces."""
    if not row.statistics or not other.statistics or not same_sentences(row.statistics[0], other.statistics[0]):
        return False
    entries = [one.config["metrics"].get(metric) for one in (row, other) if metric in one.samples]
    if len(entries) < 2 or entries[0] != entries[1]:
        return False
    one, two = row.statistics[0][metric], other.statistics[0][metric]
    return metric not in ("perplexity", HELD_OUT) or np.array_equal(one[:, 1], two[:, 1])
