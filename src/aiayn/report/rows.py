"""Runs to rows: seeds together, in the paper's order, with figures, their spread, and their distance from base."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from aiayn.evaluation import significance
from aiayn.evaluation.metric import Metric, digits
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.identity import NOT_ITS_OWN, identity, leaves, settings
from aiayn.naming import names
from aiayn.report.statistics import HeldOut, fitting, metric_of, read_statistics, same_sentences
from aiayn.runs.run import HELD_OUT, Run

log = logging.getLogger(__name__)

# The columns of Table 3, and where a config has them.
SETTINGS = {
    "N": "model.layers",
    "d_model": "model.d_model",
    "d_ff": "model.d_ff",
    "h": "model.heads",
    "d_k": "model.d_k",
    "d_v": "model.d_v",
    "P_drop": "model.dropout",
    "eps_ls": "training.label_smoothing",
    "steps": "training.max_steps",
}
# What a run's costs come to: the costs, by what they are divided, and by what else.
RATIOS = {"multiply_adds": ("flops", "target_tokens", 2.0), "step_seconds": ("training_seconds", "steps", 1.0)}
TABLE_3 = re.compile(r"table3_(base|[a-e]|big)(?:_|$)")
ONE_SEED = "one seed: the spread of training is not in it"
GROUPS = ("base", "a", "b", "c", "d", "e", "big")


@dataclass(frozen=True)
class Figure:
    """A mean over runs and their standard deviation, None for a single run."""

    mean: float
    deviation: float | None
    runs: int


@dataclass
class Row:
    """Runs that differ in their seed only.

    Attributes:
        name: Of the experiment, or what is swept.
        runs: One for each seed, at least one.
        checkpoint: Whose figures count: `last`, `best` or `averaged`.
        split: Which figures count: `dev` or `test`.
        trust: Packages whose metrics a run that was found on disk may name.
        objective: The key of the score that decides.
        samples: Of every done run, each metric on every resample of the sentences, `(runs, resamples)`.
        apart: The distance from base, for each metric; none where the two cannot be compared.
        p_values: Of that distance, for each metric, corrected for the number of rows that have one.
    """

    name: str
    runs: list[Run]
    checkpoint: str
    split: str
    trust: tuple[str, ...] = ()
    objective: str = "bleu"
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    apart: dict[str, significance.Interval] = field(default_factory=dict)
    p_values: dict[str, float] = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        """Of the first run; those of the others differ in their seed."""
        return self.runs[0].config

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Leaves of the config that make this row, by dotted key, once what parts repeat."""
        return settings(self.config)

    @cached_property
    def told(self) -> dict[str, Any]:
        """All leaves of the config, by dotted key, also what `settings` leaves out: what it is shown with."""
        return dict(leaves(self.config))

    def takes(self, run: Run, experiment: Mapping[str, Any]) -> bool:
        """Whether a run, whose identity but for the seed is given, is of this row, with a seed that the row has not.

        Other text under the same name makes another row; and the same run in two folders is no second seed.
        """
        texts = {(one.result.get("made_of") or {}).get("text") for one in (*self.runs, run)} - {None}
        seeds = [one.config.get("seed") for one in self.runs]
        return (
            bool(experiment)
            and experiment == self.experiment
            and len(texts) <= 1
            and run.config.get("seed") not in seeds
        )

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """What makes it, for comparison; of `settings`, a part is said once."""
        return identity(self.config, but=NOT_ITS_OWN)

    def called(self, run: Run) -> str:
        """A run of this row, by its seed where there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name}, seed {run.config.get('seed')}"

    @property
    def group(self) -> str:
        """Of Table 3: base, A, ..., E, big; empty for other rows."""
        found = TABLE_3.match(self.name)
        return "" if not found else found[1] if len(found[1]) > 1 else found[1].upper()

    @cached_property
    def done(self) -> list[Run]:
        """The runs that are finished."""
        return [run for run in self.runs if run.state == "done"]

    @cached_property
    def unfinished(self) -> str:
        """What keeps the row from being complete, `2 done, 1 running`; empty when nothing does."""
        states = Counter(run.state for run in self.runs)
        if len(states) == 1:
            return "" if "done" in states else next(iter(states))
        return ", ".join(f"{count} {state}" for state, count in states.most_common())

    @property
    def state(self) -> str:
        """Of all its runs, in words."""
        scored = figure.runs if self.done and (figure := self.figure(self.objective)) else 0
        if self.done and not scored:
            return f"done, without scores of {self.checkpoint}, {self.split}"
        if scored < len(self.done):
            return f"{scored} done, {len(self.done) - scored} without scores"
        return self.unfinished or "done"

    def figure(self, name: str) -> Figure | None:
        """A score or a value of result.json over the done runs; None where none has it."""
        values = [value for run in self.done if (value := self.value(run, name)) is not None]
        if not values:
            return None
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Figure(float(np.mean(values)), deviation, len(values))

    def value(self, run: Run, name: str) -> float | None:
        """A score, or a value of result.json, of one run; None where it has none."""
        value = run.result.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
            return float(value)
        if name == HELD_OUT:
            return self.held_out.get(run.folder)
        if name in RATIOS:
            over, under, times = RATIOS[name]
            both = self.value(run, over), self.value(run, under)
            return both[0] / (both[1] * times) if both[0] is not None and both[1] else None
        return run.score(*measured(run, self), name)

    @cached_property
    def held_out(self) -> dict[Path, float]:
        """HELD_OUT of every done run, by its folder; empty where one has it not."""
        if not self.statistics or HELD_OUT not in self.statistics[0]:
            return {}
        return dict(zip((run.folder for run in self.done), self.observed(HELD_OUT).tolist(), strict=True))

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """By key, those of its config that may be built: what one's own command line names, else ours and trusted.

        HELD_OUT, which no config names, is made of perplexity.
        """
        own, entries = self.runs[0].planned, self.config.get("metrics") or {}
        found = {key: metric_of(key, json.dumps(entry), None if own else self.trust) for key, entry in entries.items()}
        if isinstance(found.get("perplexity"), Perplexity):
            found[HELD_OUT] = HeldOut()
        return {key: metric for key, metric in found.items() if metric}

    @cached_property
    def scored(self) -> list[str]:
        """Keys of the scores that its done runs have."""
        found: dict[str, None] = {}
        for run in self.done:
            value: Any = run.result.get("scores")
            for key in measured(run, self):
                value = value.get(key) if isinstance(value, dict) else None
            found |= {key: None for key in value or () if run.score(*measured(run, self), key) is not None}
        return [key for key in found if key != "sentences"]

    def score_name(self, key: str) -> str:
        """What people call a score."""
        if key in self.metrics:
            return self.metrics[key].name
        return next((name for run in self.done if (name := run.said(*measured(run, self), key, "name"))), key)

    @property
    def bleu_as_in_paper(self) -> Figure | None:
        """BLEU counted as the paper's, which splits compounds; None unless all runs that have a BLEU have this one."""
        counted, plain = self.figure("bleu_paper"), self.figure("bleu")
        return counted if counted and plain and counted.runs == plain.runs else None

    def reported(self, source: str) -> dict[str, float]:
        """The paper's own figures, by key; of the `source` published, the score that others report.

        Where they report an effect, it is that of another system, whose score is not one to compare with.
        """
        found = self.config.get(source) or {}
        if source == "published":
            found = {str(found.get("metric")): found.get("with")} if found.get("without") is None else {}
        return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}

    def paper(self, name: str, source: str = "paper") -> float | None:
        """The paper's own figure; of the `source` published, one that others report."""
        return self.reported(source).get(name)

    @property
    def published_effect(self) -> float | None:
        """What others report the idea of this row to change, in units of their metric."""
        said = self.config.get("published") or {}
        with_it, without = said.get("with"), said.get("without")
        return with_it - without if isinstance(with_it, int | float) and isinstance(without, int | float) else None

    @cached_property
    def statistics(self) -> list[dict[str, np.ndarray]] | None:
        """Of every done run, as `read_statistics` has them; None unless all have them, of the same sentences.

        Of the metrics there are those that all runs have, and that can be built.
        """
        found = []
        for run in self.done:
            checkpoint, split = measured(run, self)
            file = run.folder / "translations" / f"{checkpoint}.{split}.statistics.npz"
            try:
                found.append(fitting(read_statistics(file), self.metrics, file) | self.held_out_counts(run))
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                log.warning("%s is damaged, so there are no intervals: %s", file, error)
                return None
        if not found or not all(same_sentences(found[0], one) for one in found):
            return None
        return [{key: one[key] for key in one if all(key in other for other in found)} for one in found]

    def held_out_counts(self, run: Run) -> dict[str, np.ndarray]:
        """The counts of HELD_OUT of a run whose checkpoint was evaluated on several sets; else none."""
        checkpoint, _ = measured(run, self)
        sets = [name for name in (run.result.get("scores") or {}).get(checkpoint) or () if name != "step"]
        if HELD_OUT not in self.metrics or len(sets) < 2:
            return {}
        found = []
        for name in sets:
            file = run.folder / "translations" / f"{checkpoint}.{name}.statistics.npz"
            try:
                found.append(fitting(read_statistics(file), self.metrics, file)["perplexity"])
            except (FileNotFoundError, KeyError):
                return {}
            except (OSError, ValueError) as error:
                log.warning("%s is damaged, so there is no likelihood of all sets: %s", file, error)
                return {}
        every = np.concatenate(found)
        return {HELD_OUT: np.column_stack([every, np.ones(len(every))])}

    def observed(self, metric: str) -> np.ndarray:
        """A metric on all sentences, from the statistics, `(runs,)`."""
        assert self.statistics
        return np.array([self.metrics[metric].value(counts[metric].sum(0)) for counts in self.statistics])

    @property
    def seeds(self) -> list[str]:
        """Those of its done runs, in their order."""
        return [str(run.config.get("seed")) for run in self.done]

    def same_seeds(self, other: "Row") -> bool:
        """Whether the two were trained with the same seeds, each of which put the same data in the same order."""
        data = [{key: value for key, value in row.settings.items() if key.startswith("data.")} for row in (self, other)]
        return sorted(self.seeds) == sorted(other.seeds) and data[0] == data[1]

    def minus(self, other: "Row", metric: str) -> significance.Interval:
        """How far the two are apart; they must be comparable, and their `samples` filled."""
        both = self, other
        order = [np.argsort(row.seeds) for row in both]
        return significance.difference(
            [row.observed(metric)[by_seed] for row, by_seed in zip(both, order, strict=True)],
            [row.samples[metric][by_seed] for row, by_seed in zip(both, order, strict=True)],
            same_seeds=self.same_seeds(other),
        )


def differing(rows: Sequence[Row]) -> list[str]:
    """Keys of the settings that differ; one that only some rows take from another, and is the same in all, does not."""
    keys = dict.fromkeys(key for row in rows for key in row.settings)

    def differs(values: Iterable[Any]) -> bool:
        return len(set(map(repr, values))) > 1

    return [
        key
        for key in keys
        if differs(row.settings.get(key) for row in rows) and differs(row.told.get(key) for row in rows)
    ]


def name_of(rows: Sequence[Row], key: str) -> str:
    """What a score is called, in a column's head for one."""
    found = (name for row in rows if (name := row.score_name(key)) != key)
    return "PPL" if key == "perplexity" else next(found, "BLEU" if key == "bleu" else key)


def digits_of(figures: Iterable[Figure | None]) -> int:
    """Decimals of a score's figures, as `evaluation.metric.digits`."""
    return digits(figure.mean for figure in figures if figure)


def devices(run: Run) -> str:
    """On what a run was trained: `2 x cuda, bf16-mixed`."""
    result = run.result
    if "world_size" not in result:
        return ""
    kind = result.get("device") or (run.config.get("trainer") or {}).get("accelerator", "?")
    return ", ".join([f"{result['world_size']} x {kind}", *([result["precision"]] if "precision" in result else [])])


def measured(run: Run, row: Row) -> tuple[str, str]:
    """Checkpoint and split whose scores count; an evaluation has one of each, and those are meant."""
    return run.measured(row.checkpoint, row.split)


def rows_of(
    runs: Sequence[Run],
    *,
    checkpoint: str | None = None,
    split: str | None = None,
    objective: str | None = None,
    trust: Sequence[str] = (),
) -> list[Row]:
    """The rows of a table, base first and as in Table 3 where they are of it, else in the order of the runs.

    Args:
        runs: At least one.
        checkpoint: Whose figures count; None: what `report.checkpoint` of each run's config says, or the last.
        split: Likewise; None: `report.split`, or dev.
        objective: The score that decides; None: as the runs say.
        trust: Packages whose metrics the configs of folders may name.
    """
    found: list[Row] = []
    for run in runs:
        experiment = identity(run.config, but=NOT_ITS_OWN)
        row = next((row for row in found if row.takes(run, experiment)), None)
        if row is None:
            report = run.config.get("report") or {}
            place = checkpoint or report.get("checkpoint") or "last", split or report.get("split") or "dev"
            found.append(row := Row("", [], *place, tuple(trust), objective or run.objective))
        row.runs.append(run)
    configs = [{**row.config, "seed": None} if row.config else {} for row in found]
    for row, name in zip(found, names(configs, [row.runs[0].row for row in found]), strict=True):
        row.name = name
    if any(row.group for row in found):
        base = next((row for row in found if row.group == "base"), found[0])
        found.sort(key=lambda row: place_in_table_3(row, base))
    return found


def place_in_table_3(row: Row, base: Row) -> tuple[int, int, float]:
    """Sorts rows by group, then by the first column in which they differ from base, then by its value."""
    group = GROUPS.index(row.group.lower()) if row.group else len(GROUPS)
    for number, key in enumerate(SETTINGS.values()):
        value = row.told.get(key)
        if isinstance(value, int | float) and value != base.told.get(key):
            return group, number, float(value)
    return group, len(SETTINGS), 0.0


def is_scaled(rows: Sequence[Row]) -> bool:
    """Whether one of the rows is a smaller twin of the paper's."""
    return any((row.config.get("scale") or {}).get("name", "full") != "full" for row in rows)


def base_of(rows: Sequence[Row]) -> Row:
    """The row that the others are compared with: the first one named base, or the first one."""
    return next((row for row in rows if row.name == "base" or row.name.endswith("_base")), rows[0])
