import math
from collections.abc import Callable

import pytest
import torch
from conftest import view
from torch import Tensor

from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.position.alibi import Alibi, slopes
from aiayn.model.position.bucketed import Bucketed
from aiayn.model.position.learned import LearnedPosition
from aiayn.model.position.relative import Relative
from aiayn.model.position.rotary import Rotary
from aiayn.model.position.shaw import Shaw
from aiayn.model.position.sinusoidal import SinusoidalPosition, sinusoids
from aiayn.model.view import View


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


def attention(relative: Relative | None = None) -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(13, 3, d_k=6, d_v=7, relative=None if relative is None else lambda: relative)


def weights(module: MultiHeadAttention, x: Tensor, *, start: int = 0) -> Tensor:
    places = torch.arange(start, start + x.size(1))
    return module.weights(x, view=View(places, places))


@pytest.mark.parametrize("relative", [Rotary(6), Alibi(3), Shaw(6, 7, clip=2), Bucketed(3, 8, 16)], ids=repr)
def test_relative_positions_are_distances_alone(relative: Relative) -> None:
    module, x = attention(relative), torch.randn(2, 11, 13)
    found = weights(module, x)
    torch.testing.assert_close(weights(module, x, start=7), found, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, weights(attention(), x), atol=1e-3)


@pytest.mark.parametrize("relative", [Rotary(6), Alibi(3), Shaw(6, 7, clip=2), Bucketed(3, 8, 16)], ids=repr)
def test_positions_of_another_sequence_are_no_distances(relative: Relative) -> None:
    torch.manual_seed(1)
    across = MultiHeadAttention(13, 3, kind="cross", d_k=6, d_v=7, relative=lambda: relative)
    assert across.relative is None
    query, memory = torch.randn(2, 11, 13), torch.randn(2, 17, 13)
    order = torch.randperm(17)
    seen = view(11, 17)
    torch.testing.assert_close(across(query, memory[:, order], view=seen), across(query, memory, view=seen))


def test_a_pair_of_dimensions_is_turned_by_its_rate_times_the_position() -> None:
    x, positions = torch.randn(2, 3, 5, 6), torch.tensor([0, 1, 7, 300, 1001])
    turned = Rotary(6).rotate(x, positions)
    for m in range(3):
        rate = 10000 ** (-2 * m / 6)
        turn = torch.polar(torch.ones(5), positions * rate)
        expected = torch.complex(x[..., m], x[..., m + 3]) * turn
        torch.testing.assert_close(torch.complex(turned[..., m], turned[..., m + 3]), expected, atol=1e-4, rtol=1e-4)


def test_angles_are_float32_also_under_bfloat16() -> None:
    x, far = torch.randn(1, 1, 2, 6), torch.tensor([1000, 1001])
    expected = Rotary(6).rotate(x, far)
    with torch.autocast("cpu", torch.bfloat16):
        found = Rotary(6).rotate(x.bfloat16(), far)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(8, [1, 2, 3, 4, 5, 6, 7, 8]), (6, [2, 4, 6, 8, 1, 3]), (3, [4, 8, 2]), (1, [8])],
)
def test_slopes_are_powers_of_two(heads: int, exponents: list[int]) -> None:
    assert slopes(heads, torch.device("cpu")).tolist() == [2.0**-exponent for exponent in exponents]


def test_a_bias_that_falls_with_the_distance_is_alike_both_ways() -> None:
    bias = Alibi(8).scores(torch.zeros(1, 8, 5, 6), view(5))
    assert bias[0, 1].tolist() == [-0.5, 0, -0.5, -1, -1.5]
    assert torch.equal(bias, bias.transpose(1, 2))


def test_keys_and_values_have_a_vector_for_each_distance_up_to_the_clip() -> None:
    """Equations 3 and 4 of Shaw et al. pair by pair."""
    module = attention(relative := Shaw(6, 7, clip=2))
    x, seen = torch.randn(2, 5, 13), view(5, causal=True)
    query, key, value = module.project(x, view=seen)
    context = torch.zeros(2, 3, 5, 7)
    for i in range(5):
        rows = [min(max(j - i, -2), 2) + 2 for j in range(i + 1)]
        scores = torch.stack(
            [(query[:, :, i] * (key[:, :, j] + relative.key[row])).sum(-1) / 6**0.5 for j, row in enumerate(rows)], -1
        )
        for j, row in enumerate(rows):
            context[:, :, i] += scores.softmax(-1)[..., j, None] * (value[:, :, j] + relative.value[row])
    expected = module.output(context.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, view=seen), expected, atol=1e-5, rtol=1e-5)


def test_clipped_at_0_no_distance_is_known() -> None:
    x = torch.randn(2, 11, 13)
    torch.testing.assert_close(weights(attention(Shaw(6, 7, clip=0)), x), weights(attention(), x))


def test_buckets_widen_with_the_logarithm_of_the_distance() -> None:
    bucketed, far = Bucketed(3, buckets=32, distance=128), torch.tensor([0, 7, 8, 16, 32, 64, 127, 128, 999])
    both_ways = [0, 7, 8, 10, 12, 14, 15, 15, 15]
    assert bucketed.bucket(-far, both_ways=True).tolist() == both_ways
    assert bucketed.bucket(far, both_ways=True).tolist() == [0, *(bucket + 16 for bucket in both_ways[1:])]
    assert bucketed.bucket(-far, both_ways=False).tolist() == [0, 7, 8, 16, 21, 26, 31, 31, 31]
    assert not bucketed.bucket(far, both_ways=False).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotary(5), r"model\.d_k must be even for rotary positions.*got 5"),
        (lambda: Shaw(6, 7, clip=-1), r"model\.attention\.relative\.clip must be at least 0, got -1"),
        (lambda: Bucketed(3, 6, 128), r"relative\.buckets must be a multiple of 4, got 6"),
        (lambda: Bucketed(3, 32, 16), r"relative\.distance must be above 16.*got 16"),
    ],
)
def test_an_illegal_size_of_a_relative_part_is_named(make: Callable[[], Relative], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
