"""An exponential moving average of the weights while they are trained (`callbacks=ema`); the paper has none.

Lightning keeps the average: scores on dev are the average's, and in a whole checkpoint `state_dict` is the average, so
that whatever reads a checkpoint has it, while `current_model_state` is the weights that training goes on from. What the
training does is the same with and without it. The mean of the last checkpoints is of the weights as they were trained,
never of averages: one run so shows both, `last` and `best` with the moving average, `averaged` without.
"""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging


class ExponentialMovingAverage(EMAWeightAveraging):
    """Average the weights of all optimizer steps, each step's weight in it `decay` times that of the next one's.

    It begins with the weights after the first step; nothing corrects for that, so choose 1 / (1 - decay), about the
    number of steps that it looks back, well below that of the training.

    Args:
        decay: From 0, no average at all, to below 1.
    """

    def __init__(self, *, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"callbacks.ema.decay must be at least 0 and below 1, got {decay}.")
        super().__init__(decay=decay, use_buffers=False)  # they are copied, as they are

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Lightning would take the module's device, and the module moves to the GPU only after this.
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
