"""The end of a row of a sweep that cannot win any more (`callbacks=halving`); the paper has none."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.evaluation.halving import goes_on, rungs


class Halving(Callback):
    """Compare a run with those beside its folder, by the log-likelihood of dev, and stop it if it is behind.

    The rule, and what it costs, are in `evaluation.halving`; the report of a finished sweep says what it would have
    saved there, and got wrong. A run that was stopped goes on by the same command without this callback.

    Args:
        dirpath: Where this run keeps its likelihoods; the others keep theirs likewise, in folders beside its own.
        reduction: One in so many rows goes on from each rung.
        least: Share of the training before which none is stopped.

    Raises:
        ValueError: if a setting makes no sense.
    """

    def __init__(self, dirpath: str, *, reduction: int, least: float) -> None:
        rungs(1, reduction=reduction, least=least)
        self.folder = Path(dirpath)
        self.reduction, self.least = reduction, least
        self.stopping_reason_message: str | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = rungs(trainer.max_steps, reduction=self.reduction, least=self.least)
        interval = trainer.val_check_interval
        here = [rung for rung in steps if trainer.global_step - int(interval or 1) < rung <= trainer.global_step]
        if not here:
            return
        found: Any = pl_module
        dev = found.likelihoods["dev"]
        own, others = mean(dev), self._others(trainer.global_step, dev[:, 1]) if trainer.is_global_zero else []
        if not trainer.strategy.broadcast(goes_on(own, others, reduction=self.reduction)):
            self.stopping_reason_message = (
                f"callbacks.halving: at step {trainer.global_step} its dev log-likelihood, {own:.3f}, is not among the "
                f"best 1/{self.reduction} of {len(others)} others"
            )
            trainer.should_stop = True

    def _others(self, step: int, tokens: np.ndarray) -> list[float]:
        """The mean log-likelihoods of the others at this step, where they are of the same pieces."""
        name, found = f"step_{step:07d}.npz", []
        for file in sorted(self.folder.parent.parent.glob(f"*/{self.folder.name}/{name}")):
            if file.parent != self.folder:
                with np.load(file, allow_pickle=False) as kept:
                    dev = kept["dev"]
                if np.array_equal(dev[:, 1], tokens):
                    found.append(mean(dev))
        return found


def mean(likelihoods: np.ndarray) -> float:
    """Of sums and tokens, `(sentences, 2)`, the mean of a token."""
    log_p, tokens = likelihoods.astype(float).sum(0)
    return float(log_p / tokens)
