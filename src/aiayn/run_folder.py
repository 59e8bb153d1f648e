"""A run is a folder: resolved config, result.json, metrics, checkpoints, log.

A run that is started again in its folder resumes from its last checkpoint; one that is done says so and does nothing.
Here is what every run's folder answers: is it done, where to resume, does the config fit, and what is its result.
"""

import fcntl
import hashlib
import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from aiayn.files import remove_leftovers, write_text
from aiayn.schema import NO_EFFECT, PROJECT

PACKAGES = ("torch", "lightning", "hydra-core", "sentencepiece", "sacrebleu")
CODE = ("src", "conf", "experiments", "sweeps", "pyproject.toml", "requirements.lock")  # what a run is made of
IDENTITY = ("model", "data", "training", "seed")  # the parts of a config that make it this experiment ...
FREE = {  # ... without what may change when it goes on
    *NO_EFFECT,
    "data.split",
    "training.max_steps",
    "training.max_epochs",
}
# Callbacks that never end a run, and the average that no run goes on without.
ENDLESS = ("speed", "quality", "averaging", "best", "ema")


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
        file = path / "result.json"
        if file.exists():
            try:
                self.result = json.loads(file.read_text())
                theirs = self.result["config"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} is damaged; delete it, and the run resumes from its checkpoints.") from error
            if self.result.get("status") == "failed" and self.latest is None:
                self.result = {}  # nothing was trained here: other settings are welcome
            else:
                self._check_identity(theirs)

    def _check_identity(self, config: dict[str, Any]) -> None:
        """Refuse to go on with another experiment in this folder."""
        mine, theirs = identity(self.config), identity(config)
        # A switch that is off says what a config says that is older than the switch.
        changed = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key, False) != theirs.get(key, False)]
        if changed:
            key = changed[0]
            raise ValueError(
                f"run_dir={self.path} holds a run with {key}={theirs.get(key)}, not {mine.get(key)}"
                f"{f' ({len(changed) - 1} more keys differ)' if len(changed) > 1 else ''}; "
                f"choose another run_dir, or repeat the run's own settings."
            )

    def lock(self) -> None:
        """Keep other processes from training in this folder until this one ends, however it ends.

        Raises:
            ValueError: if another process does.
        """
        self._lock = (self.path / ".lock").open("w")
        try:
            wait_for_lock(self._lock)
        except BlockingIOError as error:
            raise ValueError(
                f"run_dir={self.path} is in use by another process; wait for it, or choose another run_dir."
            ) from error

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
        return bool(stopped) and limits(config) == limits(self.config)

    @property
    def latest(self) -> Path | None:
        """The checkpoint to resume from."""
        return max(step_checkpoints(self.checkpoints).items(), default=(0, None))[1]

    def write(self, **values: Any) -> None:
        """Add values to result.json; it is replaced as a whole, so that a reader never sees half of it."""
        self.result.update(values)
        write_text(self.path / "result.json", json.dumps(self.result, indent=2) + "\n")

    def check_resumable(self, config: dict[str, Any], step: int, topology: dict[str, int]) -> None:
        """Refuse to go on from a checkpoint of another experiment, from behind the last step, or with other ranks.

        Args:
            config: The checkpoint's.
            step: Optimizer steps behind it.
            topology: `world_size` and `accumulation` now. The position in an epoch is counted in micro-batches.
        """
        self._check_identity(config)
        if step > self.config["training"]["max_steps"]:
            raise ValueError(
                f"training.max_steps={self.config['training']['max_steps']} is less than the {step} steps that the run "
                f"in run_dir={self.path} has done; give more, or choose another run_dir."
            )
        before = {key: self.result.get(key, value) for key, value in topology.items()}
        if before != topology:
            raise ValueError(
                f"run_dir={self.path} was started on {before['world_size']} devices x {before['accumulation']} "
                f"micro-batches a step, not {topology['world_size']} x {topology['accumulation']}; "
                f"set trainer.devices and data.tokens_per_device as they were."
            )

    def start(self, **values: Any) -> None:
        """Record what is run, on what; remove what a killed process left half-written, the lock being ours."""
        remove_leftovers(self.checkpoints, of_every_host=True)
        self.result.pop("error", None)
        self.write(
            **values,
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


def limits(config: dict[str, Any]) -> dict[str, Any]:
    """What may end a run before `training.max_steps`: passes over the corpus, time, callbacks beyond every run's."""
    callbacks = {name: value for name, value in config.get("callbacks", {}).items() if name not in ENDLESS}
    epochs, time_limit = config["training"].get("max_epochs"), config.get("trainer", {}).get("max_time")
    return {"max_epochs": epochs, "max_time": time_limit, "callbacks": callbacks}


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


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a config, by dotted key, that make two runs the same experiment."""
    leaves: dict[str, Any] = {}

    def walk(key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                walk(f"{key}.{name}", item)
        elif key not in FREE:
            leaves[key] = value

    for part in IDENTITY:
        walk(part, config[part])
    if ema := config.get("callbacks", {}).get("ema"):  # an average that starts or ends on the way would be another one
        walk("callbacks.ema", ema)
    return leaves


def git_commit() -> str | None:
    """The commit of this project, with "+" behind it when code or config differs from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + ("+" if git("status", "--porcelain", "--", *CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return None
