"""The LightningModule: wires a model to its loss, optimizer and schedule (section 5), which conf/training chooses.

The loss of an optimizer step is the sum over its target tokens divided by their number, over all devices and
micro-batches. Every micro-batch carries that number (`Batch.step_tokens`), so no communication is needed and the
topology does not change the experiment.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from aiayn.data.batching import Batch
from aiayn.model.model import Model


class Loss(Protocol):
    """What a file of conf/training/loss names, with the arguments that it gives."""

    def __call__(self, features: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and negative log-likelihood of the labels under softmax(features weight^T), in nats.

        Args:
            features: What the model makes of each token to predict, `(tokens, d_model)`.
            weight: `(vocab_size, d_model)`.
            labels: Ids of the words to predict, `(tokens,)`.

        Returns:
            Sums over the tokens: what training minimises, differentiable in features and weight, and what perplexities
            are made of, detached.
        """
        ...


def losses(model: Model, batch: Batch, loss: Loss) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Teacher-forced loss and negative log-likelihood of a batch, as `Loss` has them; the model's auxiliary losses."""
    features, auxiliary = model(batch)  # (pairs, target, d_model)
    labels = batch.target[:, 1:].flatten()[batch.positions]  # (tokens,)
    real = features.flatten(0, 1)[batch.positions]  # (tokens, d_model)
    return *loss(real, model.output_weight, labels), auxiliary


class TranslationModule(LightningModule):
    """Section 5: what a step of training does.

    Args:
        model: Of whatever kind.
        optimizer: Makes an optimizer of the parameters.
        schedule: Makes a schedule of the optimizer, counted in steps.
        loss: Of the tokens of a batch.
        log_steps: Optimizer steps between two lines of the log.
        seed: Of the dropout masks.
        contents: What every checkpoint holds besides (`checkpoint.contents`).
    """

    def __init__(
        self,
        model: Model,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        schedule: Callable[[Optimizer], LRScheduler],
        loss: Loss,
        log_steps: int,
        seed: int,
        contents: dict[str, Any],
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.optimizer, self.schedule, self.loss = optimizer, schedule, loss
        self.log_steps = log_steps
        self.seed = seed
        self.contents = contents
        self.rate = 0.0  # the learning rate of the last step
        self.sums = torch.zeros(2)  # loss and nll of this rank since the last line of the log
        self.tokens = 0  # real target tokens of all ranks since then
        self.dev_sums = torch.zeros(2)  # nll and tokens of this rank

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout's randomness is a function of the position in the run, so that a resumed run repeats it on any rank.
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        if micro_batch == 0:
            # Here and not when the line is written: a checkpoint that lies between holds the sums in any case.
            if self.global_step % self.log_steps == 0:
                self.sums, self.tokens = torch.zeros_like(self.sums), 0
            self.tokens += batch.step_tokens
        entropy = [self.seed, self.global_step, micro_batch, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, nll, auxiliary = losses(self.model, batch, self.loss)
        loss = sum(auxiliary.values(), loss)
        self.sums = self.sums.to(loss.device) + torch.stack([loss.detach(), nll])
        parts = self.trainer.world_size * self.trainer.accumulate_grad_batches  # what Lightning divides by
        return loss * (parts / batch.step_tokens)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.rate = optimizer.param_groups[0]["lr"]  # behind the step it is the next one's

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        # Lightning refuses this to a fused Adam in mixed precision, also where no gradient is scaled, as in bfloat16.
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches:
            return
        if self.global_step % self.log_steps == 0 or self.global_step == self.trainer.max_steps:
            loss, nll = (self.trainer.strategy.reduce(self.sums, reduce_op="sum") / self.tokens).tolist()
            perplexity = math.exp(min(nll, 50))
            metrics = {"train/loss": loss, "train/perplexity": perplexity, "train/learning_rate": self.rate}
            self.log_dict(metrics, batch_size=1)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, nll, _ = losses(self.model, batch, self.loss)
        self.dev_sums = self.dev_sums.to(nll.device) + torch.stack([nll, nll.new_tensor(len(batch.positions))])

    def on_validation_epoch_end(self) -> None:
        nll, tokens = self.trainer.strategy.reduce(self.dev_sums, reduce_op="sum").tolist()
        self.dev_sums = torch.zeros_like(self.dev_sums)
        self.log("dev/perplexity", math.exp(min(nll / tokens, 50)), batch_size=1)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        try:
            optimizer = self.optimizer(self.parameters())
            schedule = self.schedule(optimizer)
        except (TypeError, ValueError) as error:
            raise ValueError(f"training.optimizer, training.schedule: {' '.join(str(error).split())}") from error
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = self.trainer.strategy.all_gather(self.sums).reshape(-1, 2)  # (ranks, 2)
        checkpoint.update(self.contents, log_window={"sums": sums, "tokens": self.tokens})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if window := checkpoint.get("log_window"):
            self.sums, self.tokens = window["sums"][self.global_rank].clone(), window["tokens"]
