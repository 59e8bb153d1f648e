"""What each held-out sentence's probability is, kept at every validation."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.files import replacing


class Likelihoods(Callback):
    """Write the log-likelihoods of a validation as `step_0000200.npz`.

    They are teacher-forced, and without label smoothing; less noisy than BLEU. A file has an array for each split, as
    `training.module.TrainingModule.likelihoods`.

    Args:
        dirpath: Folder of the files.
    """

    def __init__(self, dirpath: str) -> None:
        self.folder = Path(dirpath)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found: dict[str, Any] = pl_module.likelihoods  # type: ignore[assignment]
        if trainer.is_global_zero and found:
            self.folder.mkdir(exist_ok=True)
            with replacing(self.folder / f"step_{trainer.global_step:07d}.npz") as place, place.open("wb") as file:
                np.savez_compressed(file, **{split: values.astype(np.float32) for split, values in found.items()})
