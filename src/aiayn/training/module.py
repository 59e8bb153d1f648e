"""The LightningModule: wires a model to the loss, the optimizer and the schedule of section 5.

The loss of an optimizer step is the sum over its target tokens divided by their number, over all devices and
micro-batches. Every micro-batch carries that number (`Batch.step_tokens`), so no communication is needed and the
topology does not change the experiment.
"""

import math
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from aiayn.data.batching import Batch
from aiayn.model.model import Model
from aiayn.training.loss import label_smoothed_cross_entropy
from aiayn.training.schedule import learning_rate


def losses(model: Model, batch: Batch, *, label_smoothing: float) -> tuple[Tensor, Tensor, int]:
    """Teacher-forced loss of a batch.

    Returns:
        The label-smoothed loss and the unsmoothed negative log-likelihood, in nats, both summed over the real target
        tokens, and how many those are.
    """
    features, auxiliary = model(batch)  # (pairs, target, d_model)
    labels = batch.target[:, 1:].flatten()[batch.positions]  # (tokens,)
    features = features.flatten(0, 1)[batch.positions]  # (tokens, d_model)
    loss, nll = label_smoothed_cross_entropy(features, model.output_weight, labels, label_smoothing=label_smoothing)
    return sum(auxiliary.values(), loss), nll, len(labels)


class TranslationModule(LightningModule):
    """Section 5: Adam, warm-up and decay of the learning rate, label smoothing.

    Args:
        model: A `torch.nn.Module` too.
        training: The `training` config.
        d_model: Sets the scale of the learning rate.
        seed: Of the dropout masks.
        contents: What every checkpoint holds besides (`checkpoint.contents`).
    """

    def __init__(
        self, model: Model, *, training: dict[str, Any], d_model: int, seed: int, contents: dict[str, Any]
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.training_config = training
        self.d_model = d_model
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
            if self.global_step % self.training_config["log_steps"] == 0:
                self.sums, self.tokens = torch.zeros_like(self.sums), 0
            self.tokens += batch.step_tokens
        entropy = [self.seed, self.global_step, micro_batch, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, nll, _ = losses(self.model, batch, label_smoothing=self.training_config["label_smoothing"])
        self.sums = self.sums.to(loss.device) + torch.stack([loss.detach(), nll])
        parts = self.trainer.world_size * self.trainer.accumulate_grad_batches  # what Lightning divides by
        return loss * (parts / batch.step_tokens)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.rate = optimizer.param_groups[0]["lr"]  # behind the step it is the next one's

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        # Lightning refuses this to a fused Adam in mixed precision, also where no gradient is scaled, as in bfloat16.
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches:
            return
        if self.global_step % self.training_config["log_steps"] == 0 or self.global_step == self.trainer.max_steps:
            loss, nll = (self.trainer.strategy.reduce(self.sums, reduce_op="sum") / self.tokens).tolist()
            perplexity = math.exp(min(nll, 50))
            metrics = {"train/loss": loss, "train/perplexity": perplexity, "train/learning_rate": self.rate}
            self.log_dict(metrics, batch_size=1)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, nll, tokens = losses(self.model, batch, label_smoothing=0.0)
        self.dev_sums = self.dev_sums.to(nll.device) + torch.stack([nll, nll.new_tensor(tokens)])

    def on_validation_epoch_end(self) -> None:
        nll, tokens = self.trainer.strategy.reduce(self.dev_sums, reduce_op="sum").tolist()
        self.dev_sums = torch.zeros_like(self.dev_sums)
        self.log("dev/perplexity", math.exp(min(nll / tokens, 50)), batch_size=1)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        config = self.training_config
        optimizer = torch.optim.Adam(
            self.parameters(), lr=1.0, betas=tuple(config["betas"]), eps=config["eps"], fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: learning_rate(  # torch counts the steps from 0, section 5.3 from 1
                step + 1,
                d_model=self.d_model,
                warmup_steps=config["warmup_steps"],
                scale=config["learning_rate_scale"],
            ),
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = self.trainer.strategy.all_gather(self.sums).reshape(-1, 2)  # (ranks, 2)
        checkpoint.update(self.contents, log_window={"sums": sums, "tokens": self.tokens})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if window := checkpoint.get("log_window"):
            self.sums, self.tokens = window["sums"][self.global_rank].clone(), window["tokens"]
