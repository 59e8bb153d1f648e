"""The checkpoint with the best score on dev."""

import logging
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.checkpoints import checkpoint
from aiayn.evaluation.metric import Metric

log = logging.getLogger(__name__)


class BestCheckpoint(Callback):
    """Keep the checkpoint of the validation with the best score as `best.ckpt`; of equals the first.

    The file says in `best` which metric, score and step it is of, and only a better score takes its place. So what is
    best is known wherever the folder is and however the run goes on. A run that starts anew begins without one.

    It is no Lightning `Checkpoint`: those come last, so this file is written before the step's own, from which a run
    that is killed between the two would go on without repeating the validation.

    Args:
        dirpath: Folder of the file.
        objective: What is compared, the key of a metric: the validation's `dev/bleu` is that of `bleu`.
        metrics: By key; that one says which direction is better.
        weights_only: Leave out what training would need to go on. With a moving average the file must be whole:
            Lightning puts the average into whole checkpoints alone.
    """

    def __init__(self, dirpath: str, *, objective: str, metrics: Mapping[str, Metric], weights_only: bool) -> None:
        self.path = Path(dirpath) / "best.ckpt"
        self.monitor = f"dev/{objective}"
        self.sign = 1 if metrics[objective].higher_is_better else -1
        self.weights_only = weights_only
        self.score = -inf  # of the file, times the sign

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            if trainer.global_step == 0:
                self.path.unlink(missing_ok=True)  # of a run that failed before its first checkpoint
            self.score = self._stored()
        self.score = trainer.strategy.broadcast(self.score)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor not in trainer.callback_metrics:
            there_are = ", ".join(sorted(key for key in trainer.callback_metrics if key.startswith("dev/"))) or "none"
            raise ValueError(f"the objective, {self.monitor}, is not measured in training; there are: {there_are}.")
        value = float(trainer.callback_metrics[self.monitor])
        if not isfinite(value):
            log.warning("%s is %s at step %d, and so not the best", self.monitor, value, trainer.global_step)
        elif self.sign * value > self.score:
            best = {"metric": self.monitor, "score": value, "step": trainer.global_step}
            trainer.save_checkpoint(self.path, weights_only=self.weights_only, storage_options={"best": best})
            self.score = self.sign * value

    def _stored(self) -> float:
        """The score of the file, if it is of this metric, times the sign."""
        if not self.path.exists():
            return -inf
        try:
            best = checkpoint.read_raw(self.path).get("best", {})
        except ValueError as error:
            raise ValueError(f"{error} Delete it, and the run goes on without it.") from error
        return self.sign * best["score"] if best.get("metric") == self.monitor else -inf
