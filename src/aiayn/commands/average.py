"""task=average: the mean of checkpoints' weights as a checkpoint (section 6.1), and its score on dev over their number.

The paper averages the last 5 or 20. Which ones, and how many, is what this command lets one try: Sockeye chooses the
best by a metric (awslabs/sockeye:sockeye/average.py), tensor2tensor the last (tensor2tensor/bin/t2t_avg_all.py).
"""

import csv
import io
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from aiayn.checkpoints import averaging, checkpoint
from aiayn.commands.inputs import (
    described,
    evaluated_data,
    evaluated_inference,
    evaluated_objective,
    evaluated_problem,
)
from aiayn.evaluation.metric import Metric, Score, digits
from aiayn.evaluation.significance import Interval, difference, p_value, resampled_sums
from aiayn.files import write_text
from aiayn.paths import path_of
from aiayn.problems.problem import Problem
from aiayn.report.plots import OURS, Line, Panel, Plot, draw
from aiayn.runs.run_folder import step_checkpoints
from aiayn.terminal import Terminal

log = logging.getLogger(__name__)

WAYS = {
    "checkpoints": "checkpoints=[a.ckpt,b.ckpt] output=mean.ckpt",
    "last": "run=FOLDER last=5",
    "best": "run=FOLDER best=5",
    "steps": "run=FOLDER steps=[8000,8500]",
    "curve": "run=FOLDER curve=true",
}


def average(cfg: DictConfig) -> None:
    """Average the checkpoints that the config chooses into `output`; with `curve`, see what each number of them scores.

    Raises:
        ValueError: if they are not chosen in exactly one way, or there are none such.
    """
    way = chosen_way(cfg)
    if way == "checkpoints":
        paths, output = [Path(str(path)) for path in cfg.checkpoints], path_of(cfg, "output")
    else:
        kept = kept_checkpoints(path_of(cfg, "run"))
        if way == "curve":
            folder = path_of(cfg, "run") / "averaging" if cfg.output is None else path_of(cfg, "output")
            return curve(cfg, list(reversed(kept.values())), folder)
        steps = chosen_steps(cfg, way, kept)
        paths = [kept[step] for step in steps]
        name = "_".join(map(str, steps)) if way == "steps" else cfg[way]
        named = paths[0].with_name(f"average_{way}_{name}.ckpt")
        output = named if cfg.output is None else path_of(cfg, "output")
    checkpoint.write(output, averaging.average(paths))
    log.info(
        "wrote the average of %d checkpoints to %s: %s", len(paths), output, ", ".join(path.stem for path in paths)
    )


def chosen_way(cfg: DictConfig) -> str:
    """The one key of `WAYS` that is given.

    Raises:
        ValueError: if it is not one, or what belongs to it is missing or of another kind.
    """
    if not isinstance(cfg.curve, bool):
        raise ValueError(f"curve must be true or false, got {cfg.curve}.")
    given = [way for way in WAYS if cfg[way] is not None and cfg[way] is not False]
    if len(given) != 1:
        raise ValueError(
            f"say in one way what to average, got {' and '.join(given) or 'none'}: {'; '.join(WAYS.values())}"
        )
    way = given[0]
    if way in ("checkpoints", "steps") and not OmegaConf.is_list(cfg[way]):
        raise ValueError(f"{way} must be a list, got {cfg[way]}: {WAYS[way]}")
    needed, foreign = ("output", "run") if way == "checkpoints" else ("run", None)
    if not cfg[needed] or (foreign and cfg[foreign]):
        raise ValueError(f"{way} goes with {needed}{f' and without {foreign}' if foreign else ''}: {WAYS[way]}")
    if cfg.output is not None and re.fullmatch(r"step_[0-9]+\.ckpt", path_of(cfg, "output").name):
        raise ValueError(f"output={cfg.output} would be taken for a checkpoint to resume from; give it another name.")
    return way


def kept_checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints that a run has kept, by step, the earliest first.

    Raises:
        ValueError: if there is none.
    """
    kept = step_checkpoints(run / "checkpoints")
    if not kept:
        raise ValueError(f"run={run} has no checkpoints/step_*.ckpt; give the folder of a run.")
    return kept


def chosen_steps(cfg: DictConfig, way: str, kept: Mapping[int, Path]) -> list[int]:
    """The steps that `last`, `best` or `steps` choose of those that are kept, in order.

    Raises:
        ValueError: if there are not so many, or one of them is missing or listed twice.
    """
    there_are = f"run={cfg.run} has {len(kept)}: {', '.join(map(str, kept))}"
    if way == "steps":
        steps = list(cfg.steps)
        if not steps or len(set(steps)) < len(steps):
            raise ValueError(f"steps={steps} must list one step or more, none of them twice; {there_are}.")
        if missing := [step for step in steps if step not in kept]:
            raise ValueError(f"steps={steps}: there is no checkpoint of step {missing[0]}; {there_are}.")
        return sorted(steps)
    count = cfg[way]
    if type(count) is not int or not 1 <= count <= len(kept):
        raise ValueError(f"{way} must be a number of kept checkpoints, 1 to {len(kept)}, got {count}; {there_are}.")
    if way == "last":
        return list(kept)[-count:]
    dev, found = DevSet.of(cfg, next(iter(kept.values()))), {}
    for step, path in kept.items():
        alone = averaging.Average()
        alone.add(path)
        found[step], _ = dev.score(alone)
        log.info("step %d: dev %s", step, found[step])
    return sorted(sorted(kept, key=lambda step: (dev.sign * found[step].value, step))[-count:])


@dataclass(frozen=True)
class DevSet:
    """A run's problem, whose dev set is decoded, and how it is scored."""

    problem: Problem
    inference: dict[str, Any]
    accelerator: str
    trust: Sequence[str]
    objective: str
    metric: Metric

    @classmethod
    def of(cls, cfg: DictConfig, path: Path) -> "DevSet":
        """That of a run's checkpoint; the command line may set keys of `inference`, and name other data."""
        config = checkpoint.read_raw(path)["config"]
        data = evaluated_data(cfg, config, path)
        data.split = "dev"
        inference = evaluated_inference(cfg, config)
        problem = evaluated_problem(cfg, config, data, inference)
        return cls(problem, inference, cfg.trainer.accelerator, cfg.trust, *evaluated_objective(cfg, config))

    @property
    def sign(self) -> int:
        """Of scores, so that the greater one is better."""
        return 1 if self.metric.higher_is_better else -1

    def score(self, mean: averaging.Average) -> tuple[Score, np.ndarray]:
        """The score of the mean, and each sentence's counts.

        Raises:
            ValueError: if it has none, which the log then explains.
        """
        loaded = checkpoint.unpacked(mean.content(), mean.paths[0])
        model, metrics = loaded.model(self.accelerator, trust=self.trust), {self.objective: self.metric}
        name = f"dev, {len(mean.paths)} averaged"
        found = self.problem.evaluate(model, loaded.vocabularies, "dev", metrics=metrics, name=name)
        if self.objective not in found.scores:
            raise ValueError(f"objective={self.objective} cannot be measured on dev; name another objective.")
        return found.scores[self.objective], found.counts[self.objective]


def curve(cfg: DictConfig, paths: Sequence[Path], output: Path) -> None:
    """Decode dev with the mean of the first, the first two, ... of `paths`; a table, and curve.csv and curve.png.

    Each checkpoint is read once. To choose their number by the score on dev and then to report that very score is
    optimistic, and the tests do not correct for the choice: report the test set for it.
    """
    dev, mean, scored = DevSet.of(cfg, paths[0]), averaging.Average(), []
    for path in paths:
        mean.add(path)
        scored.append(dev.score(mean))
    steps = [int(path.stem.removeprefix("step_")) for path in paths]
    points = curve_points(steps, dev.metric, [counts for _, counts in scored])
    write_csv(output / "curve.csv", points)
    name, title = dev.metric.name, f"The average of the last k checkpoints of {mean.kept['config']['name']}, dev"
    line = Line(name, [(p.k, p.score, "", (p.gain.high - p.gain.low) / 2) for p in points], OURS)
    label = f"dev {name}; bars: 95 % of the difference from k = 1"
    draw(Plot("curve", title, [Panel("k", label, [line], ticks=[float(p.k) for p in points])]), output / "curve.png")
    show(points, dev.metric)
    print(f"dev, {described(dev.inference)}: {scored[0][0].signature}; p: paired bootstrap over sentences, two-sided")
    log.info("curve.csv and curve.png are in %s", output)


@dataclass(frozen=True)
class CurvePoint:
    """What the average of the last `k` checkpoints scores on dev."""

    k: int
    steps: list[int]  # the latest first
    score: float
    low: float  # 95 % of the resamples of the sentences are from here
    high: float  # to here
    gain: Interval  # the difference from k = 1, on the same sentences
    p_first: float  # that the difference from k = 1 is chance
    p_best: float  # and that from the best k


def curve_points(steps: Sequence[int], metric: Metric, counts: Sequence[np.ndarray]) -> list[CurvePoint]:
    """The points of a curve, with paired bootstrap tests (`evaluation.significance`).

    Args:
        steps: Of the checkpoints, in the order in which they were added.
        metric: Of which the counts are.
        counts: Of the average of the first, the first two, ...: those of every sentence, `(sentences, columns)`.
    """
    values = [float(metric.value(one.sum(0))) for one in counts]
    resampled = metric.value(resampled_sums(counts))  # (k, resamples)
    best = int(np.argmax(values) if metric.higher_is_better else np.argmin(values))

    def p_against(index: int, other: int) -> float:
        return p_value(values[index] - values[other], resampled[index] - resampled[other])

    points = []
    for index, value in enumerate(values):
        low, high = np.quantile(resampled[index], [0.025, 0.975]).tolist()
        gain = difference([np.array([value]), np.array([values[0]])], [resampled[index, None], resampled[0, None]])
        tests = p_against(index, 0), p_against(index, best)
        points.append(CurvePoint(index + 1, list(steps[: index + 1]), value, low, high, gain, *tests))
    return points


def write_csv(path: Path, points: Sequence[CurvePoint]) -> None:
    """Write the points of a curve, one a line, with full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    gain = ("minus_first", "minus_first_low", "minus_first_high")
    writer.writerow(["k", "steps", "score", "low", "high", *gain, "p_first", "p_best"])
    for p in points:
        steps = " ".join(map(str, p.steps))
        writer.writerow(
            [p.k, steps, p.score, p.low, p.high, p.gain.value, p.gain.low, p.gain.high, p.p_first, p.p_best]
        )
    write_text(path, text.getvalue())


def show(points: Sequence[CurvePoint], metric: Metric) -> None:
    """Print the points of a curve as a table."""
    table = Table("k", "first step", f"dev {metric.name}", "minus k=1, 95 %", "p", "p against the best")
    places = digits(p.score for p in points)
    best = (max if metric.higher_is_better else min)(points, key=lambda point: point.score)
    for p in points:
        gain = " to ".join(f"{value:+.{places}f}" for value in (p.gain.low, p.gain.high))
        against_first = [f"{p.gain.value:+.{places}f} ({gain})", f"{p.p_first:.3f}"] if p.k > 1 else ["", ""]
        against_best = "best" if p is best else f"{p.p_best:.3f}"
        table.add_row(str(p.k), str(p.steps[-1]), f"{p.score:.{places}f}", *against_first, against_best)
    Terminal().print(table)
