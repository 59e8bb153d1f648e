"""The end of a run that gets no better (`callbacks=early_stopping`); the paper has none."""

from typing import Any

from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Stop when a metric of the validation has not improved `patience` times in a row, counted over resumptions.

    Args:
        monitor: The metric: `dev/bleu`.
        mode: `max` or `min`, whichever is better.
        patience: Validations, `training.validate_steps` optimizer steps each.

    Raises:
        ValueError: if `patience` is less than 1, or there is no such mode.
    """

    def __init__(self, *, monitor: str, mode: str, patience: int) -> None:
        if patience < 1:
            raise ValueError(f"callbacks.early_stopping.patience must be 1 or more, got {patience}.")
        if mode not in ("max", "min"):
            raise ValueError(f"callbacks.early_stopping.mode must be max or min, got {mode}.")
        super().__init__(monitor, mode=mode, patience=patience, check_on_train_epoch_end=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning would bring back the patience that the run had before, so that it could not be raised.
        super().load_state_dict({**state_dict, "patience": self.patience})
