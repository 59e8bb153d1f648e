"""The last checkpoints of a run, kept and averaged (section 6.1).

Lightning keeps the last k by time or by steps; it has no average of saved checkpoints (its weight-averaging callbacks
average while training).
"""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from aiayn.inference import averaging, checkpoint

log = logging.getLogger(__name__)


class CheckpointAveraging(ModelCheckpoint):
    """Keep the last `keep` checkpoints, the final weights among them, and average them when training ends.

    Files: `step_NNNNNNN.ckpt`, and `averaged.ckpt` beside them.

    Args:
        dirpath: Folder of the files.
        keep: How many to keep and to average (paper: 5 for base, 20 for big).
        minutes: Of training between two checkpoints (paper: 10).
        steps: Optimizer steps between two checkpoints; goes before `minutes`.
    """

    def __init__(self, dirpath: str, *, keep: int, minutes: float | None = None, steps: int | None = None) -> None:
        if keep < 1:
            raise ValueError(f"training.keep_checkpoints must be 1 or more, got {keep}.")
        if not steps and not minutes:
            raise ValueError("training.checkpoint_steps or training.checkpoint_minutes must be set, both are null.")
        interval: dict[str, Any] = (
            {"every_n_train_steps": steps} if steps else {"train_time_interval": timedelta(minutes=minutes or 0)}
        )
        super().__init__(
            dirpath,
            filename="step_{step:07d}",
            auto_insert_metric_name=False,
            monitor="step",
            mode="max",
            save_top_k=keep,
            enable_version_counter=False,
            # Else Lightning puts the checkpoint of an epoch's last step off to the next validation, or for ever.
            save_on_train_epoch_end=True,
            **interval,
        )
        self.keep = keep

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # a checkpoint in the middle of a step would resume with a part of its gradients
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        final = Path(str(self.dirpath)) / f"step_{trainer.global_step:07d}.ckpt"
        # Here and not when training ends, by when Lightning has counted the epoch as a whole one.
        if trainer.global_step == trainer.max_steps and not trainer.strategy.broadcast(final.exists()):
            trainer.save_checkpoint(final)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Called too when a run that was killed behind its last step is started again; `on_train_end` is not.
        if not trainer.is_global_zero or trainer.global_step < trainer.max_steps:
            return
        folder = Path(str(self.dirpath))
        paths = sorted(folder.glob("step_*.ckpt"))
        for surplus in paths[: -self.keep]:
            surplus.unlink()
        paths = paths[-self.keep :]
        checkpoint.write(folder / "averaged.ckpt", averaging.average(paths))
        log.info("averaged the last %d checkpoints: %s", len(paths), ", ".join(path.stem for path in paths))
