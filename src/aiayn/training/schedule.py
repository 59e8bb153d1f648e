"""The learning rate of section 5.3: it rises linearly for `warmup_steps`, then falls as 1 / sqrt(step)."""


def learning_rate(step: int, *, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Return the learning rate of an optimizer step (section 5.3, equation 3).

    Args:
        step: Optimizer step, counted from 1.
        d_model: Width of the model.
        warmup_steps: Step at which the rate peaks, at scale / sqrt(d_model * warmup_steps).
        scale: Factor on the formula; 1 in the paper.
    """
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
