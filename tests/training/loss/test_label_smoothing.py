import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from aiayn.training.loss import label_smoothing as loss_module
from aiayn.training.loss.label_smoothing import label_smoothed_cross_entropy

TOKENS, D_MODEL, VOCAB_SIZE = 13, 5, 11


def example(dtype: torch.dtype = torch.float64, *, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(tokens, D_MODEL, dtype=dtype, generator=generator)
    weight = torch.randn(VOCAB_SIZE, D_MODEL, dtype=dtype, generator=generator)
    labels = torch.randint(VOCAB_SIZE, (tokens,), generator=generator)
    return features.requires_grad_(), weight.requires_grad_(), labels


def torch_reference(features: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """torch spreads its mass over V words, the paper's code over V - 1: our eps is eps V / (V - 1) in torch's terms."""
    smoothing = label_smoothing * VOCAB_SIZE / (VOCAB_SIZE - 1)
    return cross_entropy(features @ weight.t(), labels, label_smoothing=smoothing, reduction="sum")


@pytest.fixture(params=[1, 4, TOKENS, 1000])
def chunk_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 1, of 4 with a rest of 1, exactly one, and one that is larger than the batch."""
    monkeypatch.setitem(loss_module.CHUNK_ELEMENTS, "cpu", request.param * VOCAB_SIZE)
    return request.param


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_and_gradients_equal_those_of_torch(chunk_rows: int, label_smoothing: float) -> None:
    features, weight, labels = example()
    loss, nll = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=label_smoothing)
    expected = torch_reference(features, weight, labels, label_smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, torch_reference(features, weight, labels, 0.0))
    gradients = torch.autograd.grad(3 * loss, [features, weight])
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * expected, [features, weight]))


def test_smoothed_label_gives_every_wrong_word_eps_over_v_minus_one() -> None:
    features, weight, labels = example()
    label = torch.full((TOKENS, VOCAB_SIZE), 0.1 / (VOCAB_SIZE - 1), dtype=torch.float64)
    label[torch.arange(TOKENS), labels] = 0.9
    expected = -(label * (features @ weight.t()).log_softmax(-1)).sum()
    torch.testing.assert_close(label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)[0], expected)


def test_gradients_agree_with_finite_differences(chunk_rows: int) -> None:
    features, weight, labels = example()
    torch.autograd.gradcheck(
        lambda features, weight: label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)[0],
        [features, weight],
    )


def test_bfloat16_autocast_is_close_to_float32_and_keeps_the_gradients_types() -> None:
    features, weight, labels = example(torch.float32, tokens=997)
    features.data *= 0.5
    expected = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    gradients = torch.autograd.grad(expected[0], [features, weight])
    with torch.autocast("cpu", torch.bfloat16):
        actual = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    actual_gradients = torch.autograd.grad(actual[0], [features, weight])
    assert actual[0].dtype == actual_gradients[0].dtype == actual_gradients[1].dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=0)  # rounding errors of 997 tokens average out
    for gradient, expected_gradient in zip(actual_gradients, gradients, strict=True):  # bfloat16 has 8 bits
        assert (gradient - expected_gradient).norm() < 2**-7 * expected_gradient.norm()


def test_float16_autocast_is_computed_in_float32() -> None:
    features, weight, labels = example(torch.float32)
    expected = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    with torch.autocast("cpu", torch.float16):
        actual = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    assert actual == expected


def test_no_tokens_give_zero_loss_and_zero_gradients() -> None:
    features, weight, labels = example(tokens=0)
    loss, nll = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    loss.backward()
    assert loss == 0
    assert nll == 0
    assert features.grad is not None
    assert features.grad.shape == (0, D_MODEL)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_losses_and_gradients_of_parts_add_up_to_those_of_the_whole() -> None:
    features, weight, labels = example()
    whole, _ = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    expected = torch.autograd.grad(whole, [features, weight])
    parts = [
        label_smoothed_cross_entropy(features[part], weight, labels[part], label_smoothing=0.1)[0]
        for part in (slice(0, 6), slice(6, TOKENS))
    ]
    for part in parts:
        part.backward()
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close((features.grad, weight.grad), expected)


def test_backward_twice_accumulates_equal_gradients() -> None:
    features, weight, labels = example()
    loss, _ = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    expected = torch.autograd.grad(2 * loss, weight, retain_graph=True)[0]
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(weight.grad, expected)


def test_evaluation_forms_no_gradients_and_has_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    features, weight, labels = example()
    expected = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)

    def forbidden(*_: Tensor) -> Tensor:
        raise AssertionError("a gradient was formed")

    monkeypatch.setattr(torch, "addmm", forbidden)
    with torch.no_grad():
        loss, nll = label_smoothed_cross_entropy(features, weight, labels, label_smoothing=0.1)
    assert (loss, nll) == tuple(expected)
    assert not loss.requires_grad
    assert not expected[1].requires_grad


def test_hopeless_tokens_have_a_finite_loss() -> None:
    features = torch.tensor([[200.0]])
    weight = torch.tensor([[1.0], [0.0], [0.0]])
    loss, nll = label_smoothed_cross_entropy(features, weight, torch.tensor([1]), label_smoothing=0.0)
    assert nll == loss == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
