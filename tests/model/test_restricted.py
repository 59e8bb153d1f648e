"""Attention to a window of neighbours: the same as a mask of a band, without the matrix that it would be on."""

from typing import Any

import pytest
import torch
from conftest import view
from test_additive import Largest
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.position.alibi import Alibi
from aiayn.model.position.bucketed import Bucketed
from aiayn.model.position.relative import Relative
from aiayn.model.position.rotary import Rotary
from aiayn.model.position.shaw import Shaw
from aiayn.model.state import Cache, DecoderState, Memory
from aiayn.model.view import View

WINDOW = 5


def pair(**parts: Any) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """Attention to a window, and attention to everything with the same weights."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"d_k": 6, "d_v": 7, **parts}
    restricted = MultiHeadAttention(13, 4, window=WINDOW, **sizes)
    whole = MultiHeadAttention(13, 4, **sizes)
    whole.load_state_dict(restricted.state_dict())
    return restricted, whole


def band(length: int, *, causal: bool, real: Tensor | None = None) -> View:
    """What the window hides, pair by pair."""
    mask = torch.tensor(
        [[abs(i - j) <= WINDOW and (j <= i or not causal) for j in range(length)] for i in range(length)]
    )
    return view(length, mask=mask if real is None else mask & real, past=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_it_is_attention_with_a_mask_of_a_band_at_every_length(causal: bool, kv_heads: int) -> None:
    restricted, whole = pair(kv_heads=kv_heads)
    for length in range(1, 4 * WINDOW + 3):
        x = torch.randn(2, length, 13)
        expected = whole(x, view=band(length, causal=causal))
        torch.testing.assert_close(restricted(x, view=view(length, causal=causal)), expected, atol=1e-5, rtol=1e-5)
        seen = restricted.weights(x, view=view(length, causal=causal))
        torch.testing.assert_close(seen, whole.weights(x, view=band(length, causal=causal)))


RELATIVE = [Rotary(6), Alibi(4), Shaw(6, 7, clip=3), Bucketed(4, 8, 16)]


@pytest.mark.parametrize("relative", RELATIVE, ids=repr)
@pytest.mark.parametrize("causal", [False, True])
def test_distances_in_a_block_are_those_in_the_sentence(relative: Relative, causal: bool) -> None:
    restricted, whole = pair(relative=lambda: relative)
    x = torch.randn(2, 23, 13)
    expected = whole(x, view=band(23, causal=causal))
    torch.testing.assert_close(restricted(x, view=view(23, causal=causal)), expected, atol=1e-5, rtol=1e-5)


def test_padding_is_seen_by_nobody_else_and_stays_finite() -> None:
    restricted, whole = pair()
    x, real = torch.randn(3, 29, 13), torch.arange(29) < torch.tensor([29, 7, 1])[:, None]
    mask = real[:, None, None]
    found, expected = restricted(x, view=view(29, mask=mask)), whole(x, view=band(29, causal=False, real=mask))
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    assert found.isfinite().all()
    dropping, _ = pair(attention_dropout=0.1)  # which writes the softmax out
    assert dropping.train()(x, view=view(29, mask=mask)).isfinite().all()


def test_gradients_are_those_of_the_band() -> None:
    restricted, whole = pair()
    x = torch.randn(2, 23, 13)
    for module, seen in ((restricted, view(23, causal=True)), (whole, band(23, causal=True))):
        module(x, view=seen).square().sum().backward()
    for (name, one), other in zip(restricted.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_twice_the_length_takes_twice_the_memory_and_operations(causal: bool) -> None:
    restricted, whole = pair()

    def cost(module: MultiHeadAttention, length: int) -> tuple[int, int]:
        x = torch.randn(1, length, 13)
        with Largest() as largest, FlopCounterMode(display=False) as counter:
            module(x, view=view(length, causal=causal)).sum().backward()
        return largest.elements, counter.get_total_flops()

    short, long = cost(restricted, 40 * WINDOW), cost(restricted, 80 * WINDOW)
    for one, twice in zip(short, long, strict=True):
        assert twice == pytest.approx(2 * one, rel=0.03)
    assert long[0] < 4 * 80 * WINDOW * 3 * WINDOW * 2  # no more than scores of all heads, and their mask
    assert cost(whole, 80 * WINDOW)[1] > 3 * cost(whole, 40 * WINDOW)[1]


def test_a_cache_keeps_the_window_of_each_beam_alone() -> None:
    restricted, whole = pair()
    cache, everything = Cache(), Cache()
    state = DecoderState(Memory(torch.zeros(2, 3, 13), None), layers=1)
    for step in range(30):
        beams = 1 if step == 0 else 3
        x = torch.randn(2, beams, 13)
        own, _ = state.advance(beams)
        found = restricted(x, view=own, cache=cache)
        near = own.query_positions[:, None] - own.key_positions <= WINDOW
        hidden = View(own.query_positions, own.key_positions, mask=near if own.mask is None else near & own.mask)
        torch.testing.assert_close(found, whole(x, view=hidden, cache=everything), atol=1e-5, rtol=1e-5)
        assert cache.length <= 3 * (WINDOW + 1)
        state.reorder(torch.randint(beams, (2, 3)))
    assert cache.length == 3 * (WINDOW + 1)
    assert everything.length == 3 * 29 + 1


def test_attention_to_another_sequence_sees_all_of_it() -> None:
    torch.manual_seed(1)
    across = MultiHeadAttention(13, 4, kind="cross", d_k=6, d_v=7, window=WINDOW)
    query, memory = torch.randn(2, 11, 13), torch.randn(2, 29, 13)
    order = torch.randperm(29)
    seen = view(11, 29)
    torch.testing.assert_close(across(query, memory[:, order], view=seen), across(query, memory, view=seen))


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_sees_nothing_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=rf"model\.attention\.window must be at least 1, got {window}"):
        MultiHeadAttention(13, 4, d_k=6, d_v=7, window=window)
