import torch

from aiayn.model.state import DecoderState, Memory


def test_a_beam_sees_its_own_slots_after_a_reorder() -> None:
    state = DecoderState(Memory(torch.zeros(1, 5, 6), None), layers=2)
    state.advance(1)  # slot 0
    state.reorder(torch.tensor([[0, 0]]))
    state.advance(2)  # slots 1, 2
    state.reorder(torch.tensor([[1, 1]]))
    own, across = state.advance(2)  # slots 3, 4
    assert own.query_positions.tolist() == across.query_positions.tolist() == [2, 2]
    assert own.key_positions.tolist() == [0, 1, 1, 2, 2]
    assert across.key_positions.tolist() == [0, 1, 2, 3, 4]
    mask = own.mask
    assert mask is not None
    assert mask[0, 0].int().tolist() == [[1, 0, 1, 1, 0], [1, 0, 1, 0, 1]]


def test_one_beam_alone_needs_no_mask() -> None:
    state = DecoderState(Memory(torch.zeros(3, 5, 6), None), layers=2)
    assert all(state.advance(1)[0].mask is None for _ in range(7))


def test_select_shrinks_the_memory_too() -> None:
    states = torch.arange(4.0)[:, None, None].expand(4, 5, 6).clone()
    state = DecoderState(Memory(states, torch.arange(20).view(4, 1, 1, 5) >= 10), layers=2)
    state.select(torch.tensor([3, 1]))
    assert state.memory.states[:, 0, 0].tolist() == [3, 1]
    assert state.memory.mask is not None
    assert state.memory.mask[:, 0, 0, 0].tolist() == [True, False]
