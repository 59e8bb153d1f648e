"""A run is a folder: resolved config, result.json, metrics, checkpoints, log.

A run that is started again in its folder resumes from its last checkpoint; one that is done says so and does nothing.
Here is what every run's folder answers: is it done, where to resume, does the config fit, and what is its result.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from aiayn.files import remove_leftovers, write_text
from aiayn.identity import ENDS, UNSAID, changed, differing, identity, made_of
from aiayn.schema import PROJECT
from aiayn.stored_config import is_older

PACKAGES = ("torch", "lightning", "hydra-core", "sentencepiece", "sacrebleu")
CODE = ("src", "conf", "experiments", "sweeps", "pyproject.toml", "requirements.lock")  # what a run is made of
RESULTS = ("translations", "likelihoods", "metrics", "tensorboard", "wandb_id.txt", "wandb_step.txt")  # and checkpoints


class RunFolder:
    """The folder of one training run.

    Args:
        path: The folder; made if it is missing.
        config: The resolved config, plain containers.

    Raises:
        ValueError: if the folder holds a run of another experiment.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.checkpoints = path / "checkpoints"
        self.result: dict[str, Any] = {}
        if path.exists() and not path.is_dir():
            raise ValueError(f"run_dir={path} is a file; name a folder.")
        path.mkdir(parents=True, exist_ok=True)
        self._read()

    def _read(self) -> None:
        """Take what result.json says; refuse to go on with another experiment."""
        self.result, file = {}, self.path / "result.json"
        if file.exists():
            try:
                self.result = json.loads(file.read_text())
                theirs = self.result["config"]
                if not isinstance(theirs, dict):
                    raise TypeError("no config")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} is damaged; delete it, and the run resumes from its checkpoints.") from error
            if self.result.get("status") == "failed" and self.latest is None:
                self.result = {}  # nothing was trained here: other settings are welcome
            else:
                self._check_identity(theirs)

    def _check_identity(self, config: dict[str, Any]) -> None:
        """Refuse to go on with another experiment in this folder."""
        if is_older(config):
            raise ValueError(
                f"run_dir={self.path} holds a run of an older aiayn, which cannot go on, though its checkpoints can be "
                f"evaluated and translated with; choose another run_dir."
            )
        mine, theirs = identity(self.config), identity(config)
        but, precision = set(ENDS), mine.get("trainer.precision")
        # What counts is the precision that was used. Which one is auto's now is known later, see `check_resumable`.
        if precision in ("auto", self.result.get("precision", theirs.get("trainer.precision"))):
            but.add("trainer.precision")
        if keys := differing(self.config, config, but=but):
            before, now = (made.get(keys[0], UNSAID.get(keys[0])) for made in (theirs, mine))
            raise ValueError(
                f"run_dir={self.path} holds a run with {keys[0]}={before}, not {now}"
                f"{f' ({len(keys) - 1} more keys differ)' if len(keys) > 1 else ''}; "
                f"choose another run_dir, or repeat the run's own settings."
            )

    def lock(self) -> None:
        """Keep other processes from training in this folder until this one ends, however it ends.

        Raises:
            ValueError: if another process does, or has trained another experiment here meanwhile.
        """
        self._lock = locked(self.path)
        self._read()  # again: who had the lock may have written, and ended

    @cached_property
    def changed(self) -> list[str]:
        """What has changed since the run began: `text`, or packages and modules of its code."""
        return changed({**self.result, "config": self.config}, own=True)

    def check_text(self) -> None:
        """Refuse to go on with another text than the run began with.

        Raises:
            ValueError: if it has begun, and its text has changed.
        """
        if "text" in self.changed and self.latest:
            raise ValueError(
                f"run_dir={self.path} holds a run whose text has changed since it began, so it cannot go on; "
                f"restore the text, choose another run_dir, or give force=true, which begins anew and removes the old."
            )

    def check_kept(self) -> None:
        """Refuse to begin anew, over its results, a run that is to go on.

        Raises:
            ValueError: if it was done, and has no checkpoint left to go on from.
        """
        if self.result.get("status") == "done" and self.latest is None:
            raise ValueError(
                f"run_dir={self.path} is done and has no checkpoint left to go on from, as task=clean leaves it; "
                f"choose another run_dir, or remove this one to begin anew."
            )

    def check_corpus(self, checkpoint: Mapping[str, Any], *, tokenizer_hash: str, corpus: str) -> None:
        """Refuse to go on with other pieces or other training pairs, whatever has made them others.

        Args:
            checkpoint: Content of the one to resume from.
            tokenizer_hash: The tokenizer's that the run has now.
            corpus: Name of the prepared corpus that it has now.

        Raises:
            ValueError: if one of them is not what it was.
        """
        before = checkpoint["tokenizer_hash"], self.result.get("corpus", corpus)
        for what, old, new in zip(("tokenizer", "corpus"), before, (tokenizer_hash, corpus), strict=True):
            if old != new:
                raise ValueError(
                    f"run_dir={self.path} was trained with the {what} {old[:16]}, and its data now make {new[:16]}; "
                    f"restore the data, or choose another run_dir."
                )

    def begin_anew(self, *, first_rank: bool) -> None:
        """Remove what a run has left here; other files stay. The record goes last, and other ranks wait for that."""
        file = self.path / "result.json"
        if first_rank:
            self.write(status="running")  # one that is killed in between is done no more
            kept = step_checkpoints(self.checkpoints).values()
            checkpoints = [*kept, self.checkpoints / "best.ckpt", self.checkpoints / "averaged.ckpt"]
            for path in (*checkpoints, *(self.path / name for name in RESULTS), file):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        else:
            with suppress(OSError, ValueError):  # gone, or being written by the first rank
                while json.loads(file.read_text()).get("made_of") == self.result.get("made_of"):
                    time.sleep(0.1)
        self.result, self.changed = {}, []

    @property
    def done(self) -> bool:
        """Whether the run has reached its steps, or was stopped by what would stop it again, and was evaluated."""
        if self.result.get("status") != "done":
            return False
        enough = self.result["steps"] >= self.config["training"]["max_steps"]
        return enough or self.stays_stopped(self.result.get("stopped"), self.result["config"])

    def stays_stopped(self, stopped: str | None, config: dict[str, Any]) -> bool:
        """Whether what has stopped the run before `training.max_steps`, if anything has, is set as it was.

        Args:
            stopped: What it was, if anything.
            config: Of the run then.
        """
        # Other experiments are refused elsewhere; what is left that may differ is what ends a run.
        return bool(stopped) and not differing(self.config, config, but={"training.max_steps", "trainer.precision"})

    @property
    def latest(self) -> Path | None:
        """The checkpoint to resume from."""
        return max(step_checkpoints(self.checkpoints).items(), default=(0, None))[1]

    def write(self, **values: Any) -> None:
        """Add values to result.json; it is replaced as a whole, so that a reader never sees half of it."""
        self.result.update(values)
        write_text(self.path / "result.json", json.dumps(self.result, indent=2) + "\n")

    def check_resumable(self, config: dict[str, Any], step: int, topology: dict[str, Any]) -> None:
        """Refuse to go on from a checkpoint of another experiment, from behind the last step, or with other ranks.

        Args:
            config: The checkpoint's.
            step: Optimizer steps behind it.
            topology: `world_size` and `accumulation` now, since they decide what dropout is drawn; and the
                `precision` that is used.
        """
        self._check_identity(config)
        if step > self.config["training"]["max_steps"]:
            raise ValueError(
                f"training.max_steps={self.config['training']['max_steps']} is less than the {step} steps that the run "
                f"in run_dir={self.path} has done; give more, or choose another run_dir."
            )
        before = {key: self.result.get(key, value) for key, value in topology.items()}
        if before.get("precision") != (precision := topology.get("precision")):
            raise ValueError(
                f"run_dir={self.path} was started with trainer.precision={before['precision']}, not {precision}; "
                f"set it as it was, or choose another run_dir."
            )
        if before != topology:
            raise ValueError(
                f"run_dir={self.path} was started on {before['world_size']} devices x {before['accumulation']} "
                f"micro-batches a step, not {topology['world_size']} x {topology['accumulation']}; "
                f"set trainer.devices and data.tokens_per_device as they were."
            )

    def start(self, **values: Any) -> None:
        """Record what is run, on what; remove what a killed process left half-written, the lock being ours.

        What text and code it is made of is recorded when it begins, not when it goes on.
        """
        remove_leftovers(self.checkpoints, of_every_host=True)
        self.result.pop("error", None)
        self.write(
            **values,
            **({} if self.latest else {"made_of": made_of(self.config, own=True)}),
            status="running",
            config=self.config,
            config_hash=hashlib.sha256(json.dumps(identity(self.config), sort_keys=True).encode()).hexdigest()[:16],
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
            git_commit=git_commit(),
            versions={package: version(package) for package in PACKAGES},
        )


def step_file(step: int) -> str:
    """The name of a run's checkpoint, by the optimizer steps behind it."""
    return f"step_{step:07d}.ckpt"


def step_checkpoints(folder: Path) -> dict[int, Path]:
    """A run's checkpoints by step, the earliest first. Files of other names, copies for one, are not the run's."""
    steps = (int(path.stem[5:]) for path in folder.glob("step_*.ckpt") if re.fullmatch("step_[0-9]+", path.stem))
    paths = {step: folder / step_file(step) for step in sorted(steps)}
    return {step: path for step, path in paths.items() if path.is_file()}


def locked(run: Path) -> IO[str]:
    """A run's lock, held until the file is closed.

    Raises:
        ValueError: if another process has it.
    """
    file = (run / ".lock").open("w")
    try:
        wait_for_lock(file)
    except BlockingIOError as error:
        raise ValueError(
            f"run_dir={run} is in use by another process; wait for it, or choose another run_dir."
        ) from error
    return file


def wait_for_lock(file: IO[str]) -> None:
    """Lock a file for this process alone; who only looks whether it is locked holds it for an instant.

    Raises:
        BlockingIOError: if another process keeps it.
    """
    for _ in range(10):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.1)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def git_commit() -> str | None:
    """The commit of this project, with "+" behind it when code or config differs from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + ("+" if git("status", "--porcelain", "--", *CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return None
