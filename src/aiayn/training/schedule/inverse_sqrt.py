"""The learning rate of section 5.3: it rises linearly for `warmup_steps`, then falls as 1 / sqrt(step)."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def learning_rate(step: int, *, d_model: int, warmup_steps: int, learning_rate_scale: float = 1.0) -> float:
    """Return the learning rate of an optimizer step (section 5.3, equation 3).

    Args:
        step: Optimizer step, counted from 1.
        d_model: Width of the model.
        warmup_steps: Step at which the rate peaks, at learning_rate_scale / sqrt(d_model * warmup_steps).
        learning_rate_scale: Factor on the formula; 1 in the paper.
    """
    return learning_rate_scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt(optimizer: Optimizer, *, d_model: int, warmup_steps: int, learning_rate_scale: float) -> LambdaLR:
    """Give an optimizer whose own rate is 1 the rate of `learning_rate`, whose arguments these are, at every step.

    Raises:
        ValueError: if the optimizer has another rate, its own default for one, which would scale the formula.
    """
    if rates := [group["lr"] for group in optimizer.param_groups if group["lr"] != 1]:
        raise ValueError(
            f"the schedule sets the rate, so lr must be 1 in the optimizer, got {float(rates[0]):g}; "
            "scale it by training.learning_rate_scale, or choose another training/schedule."
        )
    return LambdaLR(
        optimizer,
        lambda step: learning_rate(  # torch counts the steps from 0, section 5.3 from 1
            step + 1, d_model=d_model, warmup_steps=warmup_steps, learning_rate_scale=learning_rate_scale
        ),
    )
