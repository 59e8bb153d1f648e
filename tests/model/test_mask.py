import torch

from aiayn.model.mask import padding_mask


def test_padding_is_hidden_from_every_query() -> None:
    mask = padding_mask(torch.tensor([[5, 6, 7], [8, 0, 0]]), 0)
    assert mask is not None
    assert mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[True, True, True], [True, False, False]]


def test_a_batch_without_padding_has_no_mask() -> None:
    assert padding_mask(torch.tensor([[5, 0], [8, 9]]), 1) is None
