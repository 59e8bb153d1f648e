from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aiayn.callbacks.speed import TrainingSpeed


def test_the_loss_shown_is_of_the_steps_since_the_last_line() -> None:
    """The mean of the whole step is shown, not the loss of its last micro-batch; nor what the logger has."""
    said: list[str] = []
    callback = TrainingSpeed(log_steps=1000, objective="bleu")
    trainer: Any = SimpleNamespace(max_steps=9, callback_metrics={"train/loss": torch.tensor(97.0)})
    texts: list[Any] = []
    callback.advance = lambda units=1, text=str: texts.append(text)
    for index, mean in enumerate([5.0, 7.0, 2.5]):
        trainer.global_step = index + 1
        step: Any = SimpleNamespace(tokens=7)
        callback.on_train_batch_start(trainer, Any, step, index)
        callback.on_train_batch_end(trainer, Any, {"loss": 11.0, "mean": torch.tensor(mean)}, step, index)
        if index in (1, 2):  # a line is shown behind the second step, and behind the third
            said.append(texts[-1]())
    assert [line.split(",")[0] for line in said] == ["loss 6.00", "loss 2.50"]


def test_the_objective_is_shown_when_there_is_one() -> None:
    callback = TrainingSpeed(log_steps=1, objective="bleu")
    callback.losses, callback.steps = torch.tensor(11.0), 2
    trainer: Any = SimpleNamespace(callback_metrics={"dev/bleu": torch.tensor(23.0)})
    assert callback.text(trainer, 1234.0) == "loss 5.50, dev/bleu 23.00, 1,234 tokens/s"
    assert float(callback.losses) == pytest.approx(0)
