import math

import pytest
import torch

from aiayn.model.dropout import Dropout, dropped_positions


def test_every_pattern_of_neighbours_is_as_likely_as_independent_draws_make_it() -> None:
    torch.manual_seed(1)
    rate, rows, width = 0.3, 20011, 3
    dropped = torch.zeros(rows * width, dtype=torch.bool)
    dropped[dropped_positions(rows * width, rate)] = True
    patterns = (dropped.view(rows, width) * torch.tensor([1, 2, 4])).sum(1)
    counts = torch.bincount(patterns, minlength=8).double()
    drops = torch.tensor([0, 1, 1, 2, 1, 2, 2, 3])
    expected = rows * rate**drops * (1 - rate) ** (width - drops)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 7 degrees of freedom, probability 0.001


@pytest.mark.parametrize("size", [1, 2, 13])
def test_first_and_last_element_are_dropped_at_the_rate(size: int) -> None:
    torch.manual_seed(1)
    rate, trials = 0.5, 2003
    ends = torch.zeros(2)
    for _ in range(trials):
        positions = dropped_positions(size, rate)
        ends += torch.tensor([0 in positions, size - 1 in positions])
    assert ((ends / trials - rate).abs() < 4 * math.sqrt(rate * (1 - rate) / trials)).all()


def test_no_elements_have_no_dropped_positions() -> None:
    assert len(dropped_positions(0, 0.1)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradient_are_scaled_where_kept_and_zero_where_dropped(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.rand(7, 11, 13, dtype=dtype).add_(1).requires_grad_()
    y = Dropout(0.1)(x)
    y.sum().backward()
    kept = y != 0
    assert 0 < (~kept).sum() < 200
    torch.testing.assert_close(y, x * kept / 0.9)
    torch.testing.assert_close(x.grad, kept.to(dtype) / 0.9)


def test_input_may_have_any_strides() -> None:
    x = torch.ones(5, 7, 11).transpose(0, 2)
    torch.manual_seed(1)
    y = Dropout(0.1)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(y, Dropout(0.1)(x.contiguous()))


def test_masks_follow_torchs_generator() -> None:
    x, dropout = torch.ones(997), Dropout(0.1)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_nothing_changes_in_evaluation_or_at_rate_zero() -> None:
    x = torch.ones(997)
    assert Dropout(0.1).eval()(x) is x
    assert Dropout(0.0)(x).equal(x)
    assert not Dropout(1.0)(x).any()
