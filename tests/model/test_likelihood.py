from types import SimpleNamespace

import pytest
import torch
from conftest import pairs

from aiayn.model.likelihood import log_likelihoods

SOURCE = torch.tensor([[5, 7, 3, 0], [6, 3, 0, 0], [8, 9, 5, 3]])
TARGET = torch.tensor([[2, 9, 5, 11], [2, 7, 0, 0], [2, 0, 0, 0]])


def test_each_pair_has_the_sum_over_its_own_tokens(build) -> None:
    model, batch = build(), pairs(SOURCE, TARGET)
    found = log_likelihoods(model, batch)
    logits = model.project(model(batch).features).log_softmax(-1)
    labels = batch.target[:, 1:]
    for row, tokens in enumerate((labels != 0).sum(1).tolist()):
        expected = logits[row, range(tokens), labels[row, :tokens]].sum()
        assert found[row].item() == pytest.approx(expected.item(), rel=1e-5)


def test_what_is_behind_the_decoder_is_computed_in_float32(build) -> None:
    model, batch = build(), pairs(SOURCE, TARGET)
    features = model(batch).features
    with torch.autocast("cpu", torch.bfloat16):
        model.forward = lambda batch: SimpleNamespace(features=features)
        found = log_likelihoods(model, batch)
    torch.testing.assert_close(found, log_likelihoods(model, batch))
