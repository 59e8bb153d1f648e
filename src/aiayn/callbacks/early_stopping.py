"""The end of a run that gets no better (`callbacks=early_stopping`); the paper has none."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import callbacks

from aiayn.evaluation.metric import Metric


class EarlyStopping(callbacks.EarlyStopping):
    """Stop when the objective has not improved on dev `patience` times in a row, counted over resumptions.

    Args:
        objective: The key of a metric.
        metrics: By key; that one says which direction is better.
        patience: Validations, `training.validate_steps` optimizer steps each.

    Raises:
        ValueError: if `patience` is less than 1.
    """

    def __init__(self, *, objective: str, metrics: Mapping[str, Metric], patience: int) -> None:
        if patience < 1:
            raise ValueError(f"callbacks.early_stopping.patience must be 1 or more, got {patience}.")
        mode = "max" if metrics[objective].higher_is_better else "min"
        super().__init__(f"dev/{objective}", mode=mode, patience=patience, check_on_train_epoch_end=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning would bring back the patience that the run had before, so that it could not be raised.
        super().load_state_dict({**state_dict, "patience": self.patience})
