import pytest
import torch

from aiayn.training.schedule.inverse_sqrt import inverse_sqrt, learning_rate


def test_base_model_peaks_at_the_papers_rate_when_warm_up_ends() -> None:
    rates = [learning_rate(step, d_model=512, warmup_steps=4000) for step in range(1, 8001)]
    assert max(rates) == rates[3999] == pytest.approx((512 * 4000) ** -0.5)


def test_rate_rises_linearly_then_falls_with_the_inverse_square_root() -> None:
    rate = {step: learning_rate(step, d_model=7, warmup_steps=100) for step in (1, 50, 100, 400)}
    assert rate[50] == pytest.approx(50 * rate[1])
    assert rate[100] == pytest.approx(100 * rate[1])
    assert rate[400] == pytest.approx(rate[100] / 2)


def test_scale_multiplies_the_rate() -> None:
    assert learning_rate(3, d_model=5, warmup_steps=7, learning_rate_scale=2.0) == 2 * learning_rate(
        3, d_model=5, warmup_steps=7
    )


def test_an_optimizer_with_a_rate_of_its_own_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    settings = {"d_model": 5, "warmup_steps": 7, "learning_rate_scale": 1.0}
    with pytest.raises(ValueError, match=r"the schedule sets the rate, so lr must be 1 in the optimizer, got 0\.001"):
        inverse_sqrt(torch.optim.AdamW([parameter]), **settings)
    assert inverse_sqrt(torch.optim.AdamW([parameter], lr=1.0), **settings).get_last_lr() == [
        learning_rate(1, d_model=5, warmup_steps=7)
    ]
