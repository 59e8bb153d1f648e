"""Progress of training, and how fast it goes: real target tokens per second, padding not counted."""

import time
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from aiayn.data.batching import Batch
from aiayn.progress import Advance, progress


class TrainingSpeed(Callback):
    """Show step, loss, objective, tokens/s and time left; count tokens and seconds of training over resumptions.

    The loss is the mean of the steps since it was shown last, on this rank's share of them.

    Validation, decoding and saving are not counted as training.

    Args:
        log_steps: Optimizer steps between two values of `train/tokens_per_second`.
        objective: The key of the metric that is shown.
    """

    def __init__(self, log_steps: int, objective: str) -> None:
        self.log_steps = log_steps
        self.objective = objective
        self.tokens = 0  # real target tokens of all ranks
        self.seconds = 0.0
        self.since = 0.0
        self.logged = (0, 0.0)
        self.stack = ExitStack()
        self.advance: Advance | None = None
        # Nats a token, summed over the steps since the last text; it stays on the device.
        self.losses: Tensor | float = 0.0
        self.steps = 0  # since then

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "seconds": self.seconds, "logged": self.logged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokens, self.seconds = state_dict["tokens"], state_dict["seconds"]
        self.logged = state_dict.get("logged", (self.tokens, self.seconds))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.advance = self.stack.enter_context(
            progress("training", total=trainer.max_steps, done=trainer.global_step, silent=not trainer.is_global_zero)
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        if not self.since:
            self.since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.losses = self.losses + outputs["loss"].detach()
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.steps += 1
        now = time.perf_counter()
        self.tokens += batch.step_tokens
        self.seconds += now - self.since
        self.since = now
        tokens, seconds = self.tokens - self.logged[0], self.seconds - self.logged[1]
        if trainer.global_step % self.log_steps == 0 or trainer.global_step == trainer.max_steps:
            pl_module.log("train/tokens_per_second", tokens / seconds, batch_size=1)
            self.logged = (self.tokens, self.seconds)
        if self.advance:
            self.advance(1, lambda: self.text(trainer, tokens / seconds))

    def text(self, trainer: Trainer, speed: float) -> str:
        """Loss, objective and tokens/s; waits for the device."""
        loss, self.losses, self.steps = float(self.losses) / self.steps, 0.0, 0
        name = f"dev/{self.objective}"
        score = trainer.callback_metrics.get(name)
        return f"loss {loss:.2f}{'' if score is None else f', {name} {score:.2f}'}, {speed:,.0f} tokens/s"

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.since = 0.0

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.since = 0.0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stack.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stack.close()
