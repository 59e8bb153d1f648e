"""What run folders say: state, config, result and curves, read without a server and without torch."""

import csv
import fcntl
import json
import logging
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from aiayn.identity import changed
from aiayn.naming import names
from aiayn.stored_config import checked, renewed

log = logging.getLogger(__name__)

State = Literal["missing", "running", "stopped", "failed", "done", "of another checkpoint"]
# Where there are such keys.
RESULT: dict[str, type] = {
    **{"status": str, "steps": int, "scores": dict, "command": list},
    **{"made_of": dict, "claims": dict},
}
HELD_OUT = "held_out"  # the key of a score: ln P of the sentences of dev and of all test sets
CONSOLE = "console.log"  # beside a run's own log: all that its processes print, tracebacks too


@dataclass
class Run:
    """A run's folder as it stands now.

    Attributes:
        folder: Of the run.
        row: Its name in its sweep.
        config: As planned, or as the folder has it; resolved, plain containers.
        result: What result.json says; empty when there is none.
        planned: Whether the config is the command line's, and not what the folder has.
    """

    folder: Path
    row: str
    config: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    planned: bool = False

    @classmethod
    def read(cls, folder: Path, *, row: str, config: Mapping[str, Any] | None = None) -> "Run":
        """Read a folder, also one that is not there yet; a damaged result.json counts as none."""
        result = read_result(folder)
        return cls(folder, row, dict(config or result.get("config") or {}), result, planned=bool(config))

    @property
    def state(self) -> State:
        """Done and failed say the run's own words; running and stopped, whether a process holds its lock.

        A run that failed before it could write has told its console only; and an evaluation of another checkpoint than
        the planned one is not done.
        """
        if self._is_locked():
            return "running"
        if not self.result:
            return "failed" if (last_line(self.folder / CONSOLE) or "").startswith("error: ") else "missing"
        status = self.result.get("status")
        if status != "done":
            return "failed" if status == "failed" else "stopped"
        planned, evaluated = self.config.get("checkpoint"), (self.result.get("config") or {}).get("checkpoint")
        same = not planned or checkpoint_paths(planned) == checkpoint_paths(evaluated)
        return "done" if same else "of another checkpoint"

    @cached_property
    def changed(self) -> list[str]:
        """What has changed since a finished run was made: `text`, `checkpoint`, packages and modules of its code."""
        if self.state != "done":
            return []
        data = [part.get("data") or {} for part in (self.config, self.result.get("config") or {})]
        own, stored = ((part.get("corpus"), part.get("mixture") or {}) for part in data)
        return changed(self.result, own=self.planned and own == stored)

    @property
    def ended(self) -> float:
        """When its result was written last, in seconds of the system's time; infinite where there is none."""
        with suppress(OSError):
            return (self.folder / "result.json").stat().st_mtime
        return math.inf

    @property
    def stale(self) -> str:
        """`stale (text)`, a finished run's state where something has changed since; else empty."""
        return f"stale ({', '.join(self.changed)})" if self.changed else ""

    @property
    def error(self) -> str:
        """Why a run failed: as its result says, or the last line on its console; empty when neither says a thing."""
        recorded = self.result.get("error") if self.result.get("status") == "failed" else None
        return str(recorded or last_line(self.folder / CONSOLE) or "").removeprefix("error: ")

    def _is_locked(self) -> bool:
        with suppress(OSError), (self.folder / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def metric_files(self) -> list[Path]:
        """One for each start of the run, the newest last; folders of other names, a copy for one, are not the run's."""
        found = self.folder.glob("metrics/version_*/metrics.csv")
        own = {int(path.parent.name[8:]): path for path in found if path.parent.name[8:].isdecimal()}
        return [own[number] for number in sorted(own)]

    @cached_property
    def metrics(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Steps and values of every logged metric; where a resumed run repeated steps, the later values count."""
        points: dict[str, dict[int, float]] = {}
        for path in self.metric_files:
            with suppress(csv.Error), path.open(encoding="utf-8", errors="replace", newline="") as file:
                for line in csv.DictReader(file):
                    with suppress(KeyError, TypeError, ValueError):  # a line that is being written
                        step = int(line.pop("step"))
                        for key, value in line.items():
                            if value:
                                points.setdefault(key, {})[step] = float(value)
        curves = {key: np.array(sorted(values.items())) for key, values in points.items()}
        return {key: (curve[:, 0], curve[:, 1]) for key, curve in curves.items()}

    def validated(self, key: str) -> dict[int, float]:
        """A score on dev, or HELD_OUT, by the optimizer steps behind it; the log counts steps from 0."""
        if key == HELD_OUT:
            return self.likelihoods
        return {
            int(step) + 1: float(value) for step, value in zip(*self.metrics.get(f"dev/{key}", ((), ())), strict=True)
        }

    @cached_property
    def likelihoods(self) -> dict[int, float]:
        """ln P of a held-out sentence, on average over all sets, in nats, by the optimizer steps behind it."""
        return {step: float(of_sentences[:, 0].mean()) for step, of_sentences in self.sentence_likelihoods().items()}

    def sentence_likelihoods(self) -> dict[int, np.ndarray]:
        """ln P and pieces of the sentences of all held-out sets, `(sentences, 2)`, by the optimizer steps behind it."""
        found = {}
        for path in sorted((self.folder / "likelihoods").glob("step_*.npz")):
            try:
                with np.load(path, allow_pickle=False) as kept:
                    every = np.concatenate([np.asarray(kept[split], dtype=float) for split in sorted(kept.files)])
                if every.ndim != 2 or every.shape[1] != 2 or not every.size or not np.isfinite(every).all():
                    raise ValueError("it must hold ln P and pieces of sentences")
                found[int(path.stem.removeprefix("step_"))] = every
            except (OSError, EOFError, ValueError, BadZipFile, zlib.error) as error:
                log.warning("%s is damaged and left out: %s", path, error)
        return found

    def measured(self, checkpoint: str, split: str) -> tuple[str, str]:
        """The checkpoint and split that are meant by those: an evaluation has one of each, whatever is asked for."""
        scores = self.result.get("scores") or {}
        if not (self.folder / "result.json").exists() and len(scores) == 1:
            checkpoint = next(iter(scores))
            splits = [name for name in scores[checkpoint] if name != "step"]
            split = splits[0] if len(splits) == 1 else split
        return checkpoint, split

    @property
    def averaged_steps(self) -> list[int]:
        """The optimizer steps whose weights the averaged checkpoint has; empty where the run does not say."""
        steps = self.result.get("averaged_steps")
        return steps if isinstance(steps, list) and all(isinstance(step, int) for step in steps) else []

    @property
    def objective(self) -> str:
        """The key of the score that decides what is best; that of translation where an older config names none."""
        return str(self.config.get("objective") or "bleu")

    def said(self, checkpoint: str, split: str, name: str, about: str) -> str:
        """What a run says about a figure: its `name` as people write it, or its `signature`; empty when it does not."""
        value: Any = self.result.get("scores")
        for key in (checkpoint, split, name, about):
            value = value.get(key) if isinstance(value, dict) else None
        return str(value or "")

    def score(self, checkpoint: str, split: str, name: str) -> float | None:
        """A figure of a finished run, `score("last", "dev", "bleu")`; None when it has none."""
        value: Any = self.result.get("scores")
        for key in (checkpoint, split, name):
            value = value.get(key) if isinstance(value, dict) else None
        value = value.get("value") if isinstance(value, dict) else value
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_result(folder: Path) -> dict[str, Any]:
    """What result.json says, or evaluation.json; empty without both. A damaged one counts as none, and is named."""
    for file in (folder / "result.json", folder / "evaluation.json"):
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(result, dict):
                raise ValueError("it must hold keys and values")
            if wrong := [key for key, kind in RESULT.items() if not isinstance(result.get(key), kind | None)]:
                raise ValueError(f"its {wrong[0]} must be of the type {RESULT[wrong[0]].__name__}")
            checked(config := result.get("config", {}))
            return {**result, "config": renewed(config)} if config else result
        except FileNotFoundError:
            continue
        except (OSError, ValueError, MemoryError, RecursionError) as error:
            log.warning("%s is damaged and left out: %s", file, error)
    return {}


def last_line(file: Path) -> str | None:
    """The last line of a file that says something; None if there is none."""
    with suppress(OSError), file.open("rb") as text:
        text.seek(max(0, file.stat().st_size - 10_000))
        lines = [line.strip() for line in text.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), None)
    return None


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """A composed config in plain containers, without the keys that cannot be resolved: such a row fails, and says why.

    What can be resolved still tells what the row is called.
    """
    found: dict[str, Any] = {}
    for key in cfg:
        with suppress(OmegaConfBaseException):
            value = cfg[key]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
            found[str(key)] = resolved(value) if isinstance(value, DictConfig) else value
    return found


def read_rows(rows: Iterable[Any]) -> list[Run]:
    """The runs of a sweep's composed configs, in their order; `run_dir` is each one's folder."""
    return [Run.read(folder := Path(cfg.run_dir), row=folder.name, config=resolved(cfg)) for cfg in rows]


def names_of(runs: Sequence[Run]) -> list[str]:
    """What runs are called beside each other: by what differs between them."""
    return names([run.config for run in runs], [run.row for run in runs])


def checkpoint_paths(checkpoint: Any) -> str:
    """What `checkpoint=` names, as an evaluation records it: an absolute path; of an ensemble all, with commas."""
    paths = checkpoint if isinstance(checkpoint, Sequence) and not isinstance(checkpoint, str) else [checkpoint]
    return ",".join(str(Path(str(path)).absolute()) for path in paths)


def read_folder(folder: Path) -> list[Run]:
    """All runs below a folder, by name.

    Raises:
        ValueError: if there is none.
    """
    found = {path.parent for name in ("result.json", "evaluation.json") for path in folder.rglob(name)}
    if not found:
        raise ValueError(f"folder={folder} holds no run; name a run's folder, or a folder of runs.")
    rows = {path: str(path.relative_to(folder)) if path != folder else folder.resolve().name for path in found}
    return [Run.read(path, row=rows[path]) for path in sorted(found)]
