from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aiayn.callbacks.speed import TrainingSpeed


def test_the_loss_shown_is_of_the_steps_since_the_last_line() -> None:
    """Two micro-batches a step, whose losses Lightning has divided by two; the logger's value plays no part."""
    said: list[str] = []
    callback = TrainingSpeed(log_steps=1000, objective="bleu")
    trainer: Any = SimpleNamespace(
        accumulate_grad_batches=2, global_step=0, max_steps=9, callback_metrics={"train/loss": torch.tensor(97.0)}
    )
    texts: list[Any] = []
    callback.advance = lambda units=1, text=str: texts.append(text)
    for index, loss in enumerate([3.0, 2.0, 4.0, 3.0, 1.0, 1.5]):
        trainer.global_step = (index + 1) // 2
        batch: Any = SimpleNamespace(step_tokens=7)
        callback.on_train_batch_start(trainer, Any, batch, index)
        callback.on_train_batch_end(trainer, Any, {"loss": torch.tensor(loss)}, batch, index)
        if index in (3, 5):  # a line is shown behind the second step, and behind the third
            said.append(texts[-1]())
    assert [line.split(",")[0] for line in said] == ["loss 6.00", "loss 2.50"]


def test_the_objective_is_shown_when_there_is_one() -> None:
    callback = TrainingSpeed(log_steps=1, objective="bleu")
    callback.losses, callback.steps = torch.tensor(11.0), 2
    trainer: Any = SimpleNamespace(callback_metrics={"dev/bleu": torch.tensor(23.0)})
    assert callback.text(trainer, 1234.0) == "loss 5.50, dev/bleu 23.00, 1,234 tokens/s"
    assert float(callback.losses) == pytest.approx(0)
