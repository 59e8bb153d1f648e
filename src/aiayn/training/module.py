"""The LightningModule: wires a model to its loss, optimizer and schedule (section 5), which conf/training chooses.

The loss of an optimizer step is the sum over its target tokens divided by their number, over all devices and
micro-batches. Every step carries that number (`Step.tokens`), so no communication is needed and the topology does not
change the experiment. What Lightning calls a batch is such a step.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from aiayn.data.batching import Batch, Step
from aiayn.data.replica import ALONE, Replica
from aiayn.model.likelihood import log_likelihoods
from aiayn.model.model import Model

LOGGED = ("loss", "nll", "perplexity", "learning_rate", "tokens_per_second")  # as train/NAME, whatever the model


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


def losses(model: Model, batch: Batch, loss: Loss) -> dict[str, Tensor]:
    """Teacher-forced losses of a batch, summed over its target tokens.

    Returns:
        The model's auxiliary losses, by name; `nll`, the negative log-likelihood in nats; and `loss`, what training
        minimises, differentiable: that of `loss` and the auxiliary ones.

    Raises:
        ValueError: if an auxiliary loss has the name of another figure of the log.
    """
    features, auxiliary = model(batch)  # (pairs, target, d_model)
    if taken := sorted(auxiliary.keys() & set(LOGGED)):
        raise ValueError(f"an auxiliary loss cannot be called {taken[0]}, as train/{taken[0]} is logged already.")
    if not len(batch.positions):  # the filler, at which no part of the model is to learn
        auxiliary = {name: 0 * value for name, value in auxiliary.items()}
    labels = batch.target[:, 1:].flatten()[batch.positions]  # (tokens,)
    real = features.flatten(0, 1)[batch.positions]  # (tokens, d_model)
    value, nll = loss(real, model.output_weight, labels)
    if not (isinstance(value, Tensor) and isinstance(nll, Tensor) and value.ndim == nll.ndim == 0):
        raise ValueError("a loss must give two sums over the tokens, scalar tensors: what is minimised, and the nll.")
    return {**auxiliary, "nll": nll, "loss": sum(auxiliary.values(), value)}


class TrainingModule(LightningModule):
    """Section 5: what a step of training does.

    Args:
        model: Of whatever kind.
        optimizer: Makes an optimizer of the parameters.
        schedule: Makes a schedule of the optimizer, counted in steps.
        loss: Of the tokens of a batch.
        log_steps: Optimizer steps between two lines of the log.
        seed: Of the dropout masks.
        contents: What every checkpoint holds besides (`checkpoint.contents`).
        held_out: Names of the splits that are validated, in the order of their loaders; `dev` is one.
        replica: Whose share of the batches this is.

    Attributes:
        likelihoods: Of the last validation, by split: ln P of each target and its tokens, float64, `(examples, 2)`.
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
        held_out: Sequence[str] = ("dev",),
        replica: Replica = ALONE,
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.optimizer, self.schedule, self.loss = optimizer, schedule, loss
        self.log_steps = log_steps
        self.seed = seed
        self.contents = contents
        self.held_out = held_out
        self.replica = replica
        self.rate = 0.0  # the learning rate of the last step
        self.names: list[str] = []  # of the losses
        self.sums = torch.zeros(())  # this replica's losses since the last line of the log, (losses,)
        self.tokens = 0  # real target tokens of all replicas since then
        self.found: dict[str, list[np.ndarray]] = {}  # of this replica: example, ln P and tokens, `(pairs, 3)` each
        self.likelihoods: dict[str, np.ndarray] = {}

    def on_train_batch_start(self, batch: Step, batch_idx: int) -> None:
        # Here and not when the line is written: a checkpoint that lies between holds the sums in any case.
        if self.global_step % self.log_steps == 0:
            self.sums, self.tokens = torch.zeros(()), 0
        self.tokens += batch.tokens

    def training_step(self, step: Step) -> dict[str, Tensor]:
        """Leave the gradients of all micro-batches but the last one, whose loss Lightning takes.

        Returns:
            `loss`, that of the last micro-batch, and `mean`, that of all: this replica's part of the step's mean over
            tokens, times the number of replicas, whose gradients are averaged.
        """
        self.trainer.optimizers[0].zero_grad()
        mean = torch.zeros(())
        for number, batch in enumerate(step.batches):
            # Dropout's randomness is a function of the position in the run, so that a resumed run repeats it.
            entropy = [self.seed, self.global_step, number, self.replica.index]
            torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1)))
            found = losses(self.model, batch, self.loss)
            loss = found["loss"] * (self.replica.count / step.tokens)
            if self.names and self.names != list(found):  # they are added up by their place, over replicas too
                raise ValueError(
                    f"the losses of a batch must have the same names in every step, got {', '.join(found)} after "
                    f"{', '.join(self.names)}; let the model add a zero where it has none."
                )
            self.names = list(found)
            self.sums = self.sums.to(loss.device) + torch.stack([value.detach() for value in found.values()])
            mean = mean + loss.detach()
            if number + 1 < len(step.batches):
                with torch.autocast(loss.device.type, enabled=False):
                    self.trainer.strategy.backward(loss, None)
        return {"loss": loss, "mean": mean}

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        pass  # Lightning would do it between a step's last forward and backward pass; `training_step` has done it

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

    def on_train_batch_end(self, outputs: Any, batch: Step, batch_idx: int) -> None:
        if self.global_step % self.log_steps == 0 or self.global_step == self.trainer.max_steps:
            means = (self.replica.sum(self.sums) / self.tokens).tolist()
            found = dict(zip(self.names, means, strict=True))
            if not math.isfinite(found["loss"]):
                raise ValueError(
                    f"the loss is {found['loss']} at step {self.global_step}: the training has diverged; begin it anew "
                    "elsewhere with a lower training.learning_rate_scale, or more training.warmup_steps."
                )
            found["perplexity"] = math.exp(min(found.pop("nll"), 50))
            found["learning_rate"] = self.rate
            self.log_dict({f"train/{name}": value for name, value in found.items()}, batch_size=1)

    def validation_step(self, step: Step, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        for batch in step.batches:
            tokens = np.bincount(batch.positions.cpu() // (batch.target.size(1) - 1), minlength=len(batch.target))
            columns = batch.indices.cpu().numpy(), log_likelihoods(self.model, batch).numpy(), tokens
            self.found.setdefault(self.held_out[dataloader_idx], []).append(np.stack(columns, axis=1))

    def on_validation_epoch_end(self) -> None:
        self.likelihoods = {}
        for split, own in self.found.items():
            every = np.concatenate(self.replica.gather(np.concatenate(own)))
            every = every[every[:, 0] >= 0]  # without fillers
            self.likelihoods[split] = every[np.argsort(every[:, 0]), 1:]
            log_p, tokens = self.likelihoods[split].sum(0)
            self.log(f"{split}/perplexity", math.exp(min(-log_p / tokens, 50)), batch_size=1)
        self.found = {}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        try:
            optimizer = self.optimizer(self.parameters())
            schedule = self.schedule(optimizer)
        except (TypeError, ValueError) as error:
            raise ValueError(f"training.optimizer, training.schedule: {' '.join(str(error).split())}") from error
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = torch.stack(self.replica.gather(self.sums.cpu()))  # (replicas, losses)
        checkpoint.update(self.contents, log_window={"sums": sums, "tokens": self.tokens})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if window := checkpoint.get("log_window"):
            self.sums, self.tokens = window["sums"][self.replica.index].clone(), window["tokens"]
