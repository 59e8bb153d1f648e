"""Scores of section 3.2.1 that are no scaled products: additive, and unscaled."""

from itertools import pairwise

import pytest
import torch
from conftest import view
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aiayn.model.attention import additive
from aiayn.model.attention.additive import Additive
from aiayn.model.attention.multi_head import MultiHeadAttention, attention_weights
from aiayn.model.position.alibi import Alibi

WIDTHS = (16, 64, 256)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes, forward and backward."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(made) if isinstance(x, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made


def scores_and_gradients(part: Additive, query: Tensor, key: Tensor) -> list[Tensor]:
    scores = part(query, key)
    return [scores, *torch.autograd.grad(scores.sin().sum(), [query, key, part.vector])]


def test_a_score_is_a_network_with_one_hidden_layer_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    part, query, key = Additive(3, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 13, 5)
    expected = torch.empty(2, 3, 11, 13)
    for head in range(3):
        for i in range(11):
            for j in range(13):
                expected[:, head, i, j] = torch.tanh(query[:, head, i] + key[:, head, j]) @ part.vector[head]
    torch.testing.assert_close(part(query, key), expected)
    query, key = query.requires_grad_(), key.requires_grad_()
    at_once = scores_and_gradients(part, query, key)
    for most in (1, 4 * 2 * 3 * 13 * 5):  # one query at a time, and four
        monkeypatch.setitem(additive.CHUNK_ELEMENTS, "cpu", most)
        torch.testing.assert_close(scores_and_gradients(part, query, key), at_once)


def test_the_hidden_layer_never_exists_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(additive.CHUNK_ELEMENTS, "cpu", 2**14)
    part, length = Additive(1, 16), 128
    query, key = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(2))
    with Largest() as largest:
        part(query, key).sum().backward()
    assert largest.elements == length**2 == 2**14  # the scores; the hidden layer would have 16 times as many


def test_what_autograd_keeps_of_the_hidden_layer_is_nothing() -> None:
    kept = []
    part, query, key = Additive(1, 16), *(torch.randn(1, 1, 64, 16, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        scores = part(query, key)
    assert scores.requires_grad
    assert max(kept) < 64 * 64


def entropy_and_slope(d_k: int, **how: object) -> tuple[float, float]:
    """Of the softmax over 8 keys, means over queries and keys from N(0, 1): entropy, and norm of its Jacobian."""
    torch.manual_seed(1)
    query, key = torch.randn(3000, 1, 1, d_k), torch.randn(3000, 1, 8, d_k)
    weights = attention_weights(query, key, view=view(1, 8), **how)[:, 0, 0]
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    return torch.special.entr(weights).sum(-1).mean().item(), jacobian.norm(dim=(1, 2)).mean().item()


def test_products_vary_with_the_width_of_keys() -> None:
    """Section 3.2.1, footnote 4: their variance is d_k."""
    for d_k in WIDTHS:
        query, key = torch.randn(20000, d_k), torch.randn(20000, d_k)
        assert (query * key).sum(-1).var().item() == pytest.approx(d_k, rel=0.05)


def test_without_scaling_wide_keys_push_the_softmax_where_its_gradients_are_small() -> None:
    found = [entropy_and_slope(d_k, scale=1.0) for d_k in WIDTHS]
    for one, wider in pairwise(found):  # each four times as wide
        assert wider[0] < 0.6 * one[0]
        assert wider[1] < 0.6 * one[1]


@pytest.mark.parametrize("kind", ["scaled", "additive"])
def test_scaled_products_and_a_network_do_not_depend_on_the_width(kind: str) -> None:
    torch.manual_seed(1)
    found = [entropy_and_slope(d_k, score=Additive(1, d_k) if kind == "additive" else None) for d_k in WIDTHS]
    for measure in zip(*found, strict=True):
        assert max(measure) < 1.05 * min(measure)


def test_unscaled_attention_is_that_of_queries_as_much_longer() -> None:
    torch.manual_seed(1)
    unscaled = MultiHeadAttention(13, 3, d_k=5, d_v=7, scale=1.0)
    scaled = MultiHeadAttention(13, 3, d_k=5, d_v=7)
    scaled.load_state_dict(unscaled.state_dict())
    with torch.no_grad():
        scaled.query.weight *= 5**0.5
    x, seen = torch.randn(2, 11, 13), view(11, causal=True)
    torch.testing.assert_close(unscaled(x, view=seen), scaled(x, view=seen))
    torch.testing.assert_close(unscaled.weights(x, view=seen), scaled.weights(x, view=seen))


@pytest.mark.parametrize(("more", "key"), [({"scale": 1.0}, "scale"), ({"relative": lambda: Alibi(3)}, "relative")])
def test_what_is_of_products_is_refused_beside_a_network(more: dict, key: str) -> None:
    with pytest.raises(ValueError, match=f"model.attention.{key} is of products"):
        MultiHeadAttention(13, 3, d_k=5, d_v=7, score=lambda: Additive(3, 5), **more)
