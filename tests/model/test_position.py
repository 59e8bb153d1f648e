import math

import pytest
import torch

from aiayn.model.position.learned import LearnedPosition
from aiayn.model.position.sinusoidal import SinusoidalPosition, sinusoids


def test_sine_and_cosine_alternate_as_in_the_formula() -> None:
    table = sinusoids(13, 6)
    for pos in range(13):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_an_offset_continues_where_the_prefix_ended() -> None:
    for position in (SinusoidalPosition(6, max_length=11), LearnedPosition(6, max_length=11)):
        x = torch.randn(2, 11, 6)
        torch.testing.assert_close(position(x[:, 7:], offset=7), position(x)[:, 7:])


def test_sinusoids_grow_with_the_sequence() -> None:
    position = SinusoidalPosition(6, max_length=5)
    torch.testing.assert_close(position(torch.zeros(1, 23, 6))[0], sinusoids(23, 6))


def test_learned_positions_name_the_key_when_a_sequence_is_too_long() -> None:
    with pytest.raises(
        ValueError, match=r"model\.position\.max_length=5 must cover every sequence, got one of 7.*Raise"
    ):
        LearnedPosition(6, max_length=5)(torch.zeros(1, 3, 6), offset=4)


@pytest.mark.parametrize("d_model", [7, 0])
def test_sinusoids_need_an_even_width(d_model: int) -> None:
    with pytest.raises(ValueError, match=f"model.d_model must be even for sinusoidal positions.*got {d_model}"):
        SinusoidalPosition(d_model)


def test_only_learned_positions_have_parameters() -> None:
    assert not SinusoidalPosition(6).state_dict()
    assert sum(p.numel() for p in LearnedPosition(6, max_length=11).parameters()) == 66
