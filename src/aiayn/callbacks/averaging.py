"""The last checkpoints of a run, kept and averaged (section 6.1).

What is on disk decides: which checkpoints there are, where a run goes on, and what is averaged. So a run that was
killed, extended, moved or copied ends as one that was not. Lightning's ModelCheckpoint keeps that in its state, by
path, and it has no average of saved checkpoints (its weight-averaging callbacks average while training).
"""

import logging
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer

from aiayn.checkpoints import averaging, checkpoint
from aiayn.runs.run_folder import step_checkpoints, step_file

log = logging.getLogger(__name__)


class CheckpointAveraging(Checkpoint):
    """Keep the last `keep` checkpoints of the schedule, the final weights among them, and average them at the end.

    Files: `step_NNNNNNN.ckpt`, and `averaged.ckpt` beside them. A checkpoint says in `scheduled` whether it is one of
    the schedule, and in `stopped` what ended the run there before `training.max_steps`. One that was only the end of an
    earlier, shorter run is neither kept nor averaged once the run has gone on beyond it.

    A step's validation comes before its checkpoint, so that a run that is killed between them repeats the validation.

    Args:
        dirpath: Folder of the files.
        keep: How many to keep and to average (paper: 5 for base, 20 for big).
        steps: Optimizer steps between two checkpoints; or ...
        minutes: ... of training between them (paper: 10).

    Raises:
        ValueError: if `keep` is less than 1, or not exactly one of `steps` and `minutes` is given.
    """

    def __init__(self, dirpath: str, *, keep: int, steps: int | None = None, minutes: float | None = None) -> None:
        if keep < 1:
            raise ValueError(f"training.keep_checkpoints must be 1 or more, got {keep}.")
        if bool(steps) == bool(minutes):
            raise ValueError(
                f"one of training.checkpoint_steps={steps} and training.checkpoint_minutes={minutes} must be set, and "
                f"the other null."
            )
        self.folder = Path(dirpath)
        self.keep = keep
        self.steps = steps
        self.seconds = 60 * (minutes or 0)
        self.since = 0.0  # when the clock began to run for the next checkpoint
        self.scheduled = False  # whether the schedule has a checkpoint of this step
        self.position: dict[str, Any] = {}  # in the training data, behind this step
        self.known: dict[Path, bool] = {}  # whether a file is one of the schedule

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.since = time.monotonic()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "stopping_reason_message"):
                callback.stopping_reason_message = None  # of a stop that this run goes on from

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Of now: later Lightning counts this step's validation as unfinished, or the epoch as a whole one.
        self.position = trainer.fit_loop.state_dict()
        self.scheduled = self._is_scheduled(trainer)
        if self.scheduled and not validates(trainer) and not trainer.fit_loop.done:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.scheduled and not trainer.fit_loop.done:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Whatever ends the training, this is called behind its last step and before others change the weights.
        if trainer.fit_loop.done:
            self._save(trainer, stopped=stopped_by(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Called too when a run that was killed behind its last step is started again; `on_train_end` is not.
        if not trainer.is_global_zero:
            return
        chosen = self._clear()
        if not chosen:
            raise ValueError("the run was stopped before its first step; there is nothing to average or evaluate.")
        try:
            content = averaging.average(list(chosen.values()))
        except ValueError as error:
            raise ValueError(f"{error} Delete it, and the same command averages the others.") from error
        checkpoint.write(self.folder / "averaged.ckpt", content)
        log.info("averaged.ckpt is the mean of steps %s", ", ".join(map(str, chosen)))
        if len(chosen) < self.keep:
            log.warning(
                "the run has %d of training.keep_checkpoints=%d checkpoints to average; "
                "lower training.checkpoint_steps to have more.",
                len(chosen),
                self.keep,
            )

    def _is_scheduled(self, trainer: Trainer) -> bool:
        if self.steps:
            return trainer.global_step % self.steps == 0
        now = time.monotonic()
        due = trainer.strategy.broadcast(now - self.since >= self.seconds)  # one clock for all ranks
        if due:
            self.since = now
        return due

    def _save(self, trainer: Trainer, *, stopped: str | None = None) -> None:
        path = self.folder / step_file(trainer.global_step)
        values = {"scheduled": self.scheduled, "stopped": stopped, "loops": {"fit_loop": self.position}}
        trainer.save_checkpoint(path, weights_only=False, storage_options=values)
        self.known[path] = self.scheduled
        if trainer.is_global_zero:
            self._clear()

    def _clear(self) -> dict[int, Path]:
        """Delete the checkpoints that are not to be averaged; the others, by step."""
        found = step_checkpoints(self.folder)
        chosen = [step for step, path in found.items() if step == max(found) or self._of_the_schedule(step, path)]
        for step in found.keys() - chosen[-self.keep :]:
            found.pop(step).unlink()
        return found

    def _of_the_schedule(self, step: int, path: Path) -> bool:
        if path not in self.known:
            on_grid = not self.steps or step % self.steps == 0  # for a file that does not say it
            try:
                self.known[path] = checkpoint.read_raw(path).get("scheduled", on_grid)
            except ValueError as error:
                raise ValueError(f"{error} Delete it, and the same command goes on without it.") from error
        return self.known[path]


def validates(trainer: Trainer) -> bool:
    """Whether Lightning validates between this step and the next."""
    steps, interval = trainer.fit_loop.total_batch_idx + 1, trainer.val_check_batch
    return trainer.enable_validation and interval is not None and steps % interval == 0


def stopped_by(trainer: Trainer) -> str | None:
    """What has ended the training, in a line; None for `training.max_steps`."""
    if trainer.global_step >= trainer.max_steps:
        return None
    if not trainer.should_stop:
        return f"training.max_epochs={trainer.max_epochs} passes over the corpus"
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if reason := getattr(callback, "stopping_reason_message", None):
            return reason.removesuffix(" Signaling Trainer to stop.")
        if isinstance(callback, Timer) and (left := callback.time_remaining()) is not None and left <= 0:
            return f"the time limit, after {callback.time_elapsed():.0f} s of training"
    return "a callback"
