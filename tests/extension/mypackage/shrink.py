"""A callback that changes what is learnt: weights decay, apart from the gradients (Loshchilov and Hutter 2019)."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class Shrink(Callback):
    """Make every weight a little smaller before each optimizer step."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(1 - self.rate)
