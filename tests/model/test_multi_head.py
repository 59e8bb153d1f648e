import pytest
import torch
from conftest import view
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from aiayn.model.attention import multi_head as attention
from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.position.relative import Relative
from aiayn.model.state import Cache, keep_rows
from aiayn.model.view import View

D_MODEL, HEADS, D_K, D_V = 13, 3, 5, 7


def reference(module: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
    """Section 3.2.2 head by head, through the math path of torch's attention."""
    shared = HEADS // module.kv_heads
    contexts = []
    for head in range(HEADS):
        q = linear(query, *(rows.chunk(HEADS)[head] for rows in (module.query.weight, module.query.bias)))
        own = (rows.chunk(module.kv_heads)[head // shared] for rows in (module.memory.weight, module.memory.bias))
        k, v = linear(memory, *own).split([D_K, D_V], dim=-1)
        with sdpa_kernel(SDPBackend.MATH):
            contexts.append(scaled_dot_product_attention(q, k, v, attn_mask=mask))
    return module.output(torch.cat(contexts, -1))


@pytest.fixture(params=[HEADS, 1])
def module(request: pytest.FixtureRequest) -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(D_MODEL, HEADS, d_k=D_K, d_v=D_V, kv_heads=request.param)


def test_self_attention_equals_the_math_path(module: MultiHeadAttention) -> None:
    x = torch.randn(2, 11, D_MODEL)
    torch.testing.assert_close(module(x, view=view(11)), reference(module, x, x))


def test_causal_attention_equals_the_math_path_with_a_triangle(module: MultiHeadAttention) -> None:
    x = torch.randn(2, 11, D_MODEL)
    torch.testing.assert_close(
        module(x, view=view(11, causal=True)), reference(module, x, x, torch.ones(11, 11).tril().bool())
    )


def test_attention_to_a_memory_equals_the_math_path(module: MultiHeadAttention) -> None:
    query, memory = torch.randn(2, 11, D_MODEL), torch.randn(2, 17, D_MODEL)
    mask = torch.rand(2, 1, 1, 17) < 0.7
    torch.testing.assert_close(
        module(query, memory, view=view(11, 17, mask=mask)), reference(module, query, memory, mask[:, 0])
    )


def test_equal_d_k_and_d_v_take_the_fast_kernel_to_the_same_result() -> None:
    fast = MultiHeadAttention(12, 2, d_k=6, d_v=6)
    x = torch.randn(2, 11, 12)
    with sdpa_kernel(SDPBackend.MATH):
        expected = fast(x, view=view(11, causal=True))
    torch.testing.assert_close(fast(x, view=view(11, causal=True)), expected)


def test_the_stacked_projections_and_the_output_have_glorot_bounds(module: MultiHeadAttention) -> None:
    stacked = module.query.weight, module.memory.weight
    rows = HEADS * D_K + module.kv_heads * (D_K + D_V)
    bounds = [(6 / (D_MODEL + rows)) ** 0.5] * 2 + [(6 / sum(module.output.weight.shape)) ** 0.5]
    for matrix, bound in zip((*stacked, module.output.weight), bounds, strict=True):
        assert 0.9 * bound < matrix.abs().max() <= bound
    assert not module.query.bias.any()
    assert not module.memory.bias.any()
    assert not module.output.bias.any()


def test_a_cache_fed_token_by_token_equals_all_at_once(module: MultiHeadAttention) -> None:
    x, cache = torch.randn(2, 11, D_MODEL), Cache()
    steps = [module(x[:, i : i + 1], view=view(1, i + 1), cache=cache) for i in range(11)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x, view=view(11, causal=True)))


def test_a_cached_memory_is_projected_once(module: MultiHeadAttention) -> None:
    query, memory, cache = torch.randn(2, 3, D_MODEL), torch.randn(2, 17, D_MODEL), Cache()
    expected = module(query, memory, view=view(3, 17), cache=cache)
    torch.testing.assert_close(
        module(query, torch.full_like(memory, torch.nan), view=view(3, 17), cache=cache), expected
    )


def test_keeping_rows_follows_the_order_given() -> None:
    x = torch.arange(7)[:, None].repeat(1, 2)
    assert keep_rows(x, 4, torch.tensor([[1, 3], [6, 5]]))[:, 1].tolist() == [0, 6, 2, 5]


@pytest.mark.parametrize("name", ["d_model", "heads", "kv_heads", "d_k", "d_v"])
def test_an_illegal_size_is_named(name: str) -> None:
    sizes = {"d_model": 13, "heads": 3, "d_k": 5, "d_v": 7} | {name: 0}
    with pytest.raises(ValueError, match=f"model.{name} must be at least 1, got 0"):
        MultiHeadAttention(**sizes)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_training_on_a_cpu_is_close_to_float32(causal: bool) -> None:
    query, key, value = (torch.randn(2, HEADS, 11, D_K, requires_grad=True) for _ in range(3))
    mask = None if causal else (torch.rand(2, 1, 1, 11) < 0.7).index_fill(3, torch.tensor(0), True)
    expected = attention.scaled_dot_product_attention(query, key, value, view=view(11, mask=mask, causal=causal))
    half = (x.bfloat16() for x in (query, key, value))
    actual = attention.scaled_dot_product_attention(*half, view=view(11, mask=mask, causal=causal))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, atol=2**-6, rtol=0)  # values near 1, 8 bits, a few roundings
    expected_gradients = torch.autograd.grad(expected.square().sum(), [query, key, value])
    gradients = torch.autograd.grad(actual.float().square().sum(), [query, key, value])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert (gradient - expected_gradient).norm() < 2**-6 * expected_gradient.norm()


def test_heads_that_share_keys_are_as_many_for_each() -> None:
    with pytest.raises(ValueError, match=r"model\.kv_heads must divide model\.heads, got kv_heads=2, heads=3"):
        MultiHeadAttention(13, 3, d_k=5, d_v=7, kv_heads=2)


def test_each_kind_of_attention_may_share_keys_otherwise() -> None:
    shared = {"kv_heads": 6, "decoder_kv_heads": 2, "cross_kv_heads": 1}
    made = {
        kind: MultiHeadAttention(13, 6, kind=kind, d_k=5, d_v=7, **shared) for kind in ("encoder", "decoder", "cross")
    }
    assert {kind: module.kv_heads for kind, module in made.items()} == {"encoder": 6, "decoder": 2, "cross": 1}
    assert [len(module.memory.weight) for module in made.values()] == [6 * 12, 2 * 12, 12]
    with pytest.raises(ValueError, match=r"model\.cross_kv_heads must divide model\.heads, got cross_kv_heads=4"):
        MultiHeadAttention(13, 6, kind="cross", d_k=5, d_v=7, cross_kv_heads=4)


def test_normalised_queries_and_keys_have_scores_that_do_not_grow_with_them() -> None:
    """Whatever the size of what is projected, a score is at most sqrt(d_k) while the gains are 1."""
    torch.manual_seed(1)
    module = MultiHeadAttention(13, 3, d_k=5, d_v=7, qk_norm=lambda: nn.RMSNorm(5, eps=1e-6))
    plain = MultiHeadAttention(13, 3, d_k=5, d_v=7)
    x, seen = torch.randn(2, 11, 13), view(11)
    query, key, value = module.project(x, view=seen)
    for found in (query, key):
        torch.testing.assert_close(found.square().mean(-1), torch.ones(2, 3, 11), atol=1e-3, rtol=0)
    plain.load_state_dict({name: value for name, value in module.state_dict().items() if "norm" not in name})
    torch.testing.assert_close(value, plain.project(x, view=seen)[2])
    expected = (query @ key.mT / 5**0.5).softmax(-1)
    torch.testing.assert_close(module.weights(x, view=seen), expected)
    torch.testing.assert_close(module.weights(1000 * x, view=seen), expected, atol=1e-3, rtol=0)


class Distance(Relative):
    """Scores fall with the distance, and queries and keys are turned by their position: both halves of the part."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * (1 + positions[:, None])

    def scores(self, query: Tensor, view: View) -> Tensor:
        return -(view.query_positions[:, None] - view.key_positions).abs().float()


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_relative_part_turns_queries_and_keys_and_adds_to_the_scores(kv_heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = MultiHeadAttention(13, 3, d_k=5, d_v=7, kv_heads=kv_heads, relative=Distance).to(dtype)
    x = torch.randn(2, 11, 13).to(dtype).requires_grad_()
    seen = view(11, causal=True)
    plain = MultiHeadAttention(13, 3, d_k=5, d_v=7, kv_heads=kv_heads).to(dtype)
    plain.load_state_dict(module.state_dict())
    query, key, value = plain.project(x, view=seen)
    turn = torch.arange(1, 12)[:, None]
    scores = (query * turn) @ (key * turn).repeat_interleave(3 // kv_heads, 1).transpose(2, 3) / 5**0.5
    scores = scores - (torch.arange(11)[:, None] - torch.arange(11)).abs()
    weights = scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf).softmax(-1)
    context = weights.to(dtype) @ value.repeat_interleave(3 // kv_heads, 1)
    expected = module.output(context.transpose(1, 2).flatten(2))
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(module(x, view=seen), expected, **tolerance)
    torch.testing.assert_close(module.weights(x, view=seen).float(), weights.float(), **tolerance)


def test_what_a_cache_holds_was_turned_where_it_stands() -> None:
    torch.manual_seed(1)
    module, cache = MultiHeadAttention(13, 3, d_k=5, d_v=7, relative=Distance), Cache()
    x = torch.randn(2, 11, 13)
    steps = [module(x[:, i : i + 1], view=View(torch.tensor([i]), torch.arange(i + 1)), cache=cache) for i in range(11)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x, view=view(11, causal=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_dropped_in_training_alone(causal: bool, dtype: torch.dtype) -> None:
    module = MultiHeadAttention(22, 2, d_k=5, d_v=7, kv_heads=1, attention_dropout=0.5).to(dtype)
    plain = MultiHeadAttention(22, 2, d_k=5, d_v=7, kv_heads=1).to(dtype)
    plain.load_state_dict(module.state_dict())
    x, seen = torch.randn(3, 13, 22, dtype=dtype), view(13, causal=causal)
    torch.testing.assert_close(module.eval()(x, view=seen), plain(x, view=seen), atol=0.02, rtol=0.02)
    first, second = module.train()(x, view=seen), module(x, view=seen)
    assert not first.equal(second)
    torch.manual_seed(1)
    mean = torch.stack([module(x, view=seen) for _ in range(2000)]).float().mean(0)
    torch.testing.assert_close(mean, plain(x, view=seen).float(), atol=0.06, rtol=0.06)  # what is kept is doubled


def test_a_rate_that_drops_all_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.attention_dropout must be in \[0, 1\), got 1"):
        MultiHeadAttention(6, 2, d_k=5, d_v=7, attention_dropout=1)
