import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from aiayn.model.attention import multi_head as attention
from aiayn.model.attention.multi_head import Cache, MultiHeadAttention, keep_rows

D_MODEL, HEADS, D_K, D_V = 13, 3, 5, 7


def reference(module: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
    """Section 3.2.2 head by head, through the math path of torch's attention."""
    matrices = module.projection.weight.split([HEADS * D_K, HEADS * D_K, HEADS * D_V])
    biases = module.projection.bias.split([HEADS * D_K, HEADS * D_K, HEADS * D_V])
    projected = [linear(x, w, b) for x, w, b in zip((query, memory, memory), matrices, biases, strict=True)]
    contexts = []
    for head in range(HEADS):
        q, k, v = (x.chunk(HEADS, -1)[head] for x in projected)
        with sdpa_kernel(SDPBackend.MATH):
            contexts.append(scaled_dot_product_attention(q, k, v, attn_mask=mask))
    return module.output(torch.cat(contexts, -1))


@pytest.fixture
def module() -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(D_MODEL, HEADS, d_k=D_K, d_v=D_V)


def test_self_attention_equals_the_math_path(module: MultiHeadAttention) -> None:
    x = torch.randn(2, 11, D_MODEL)
    torch.testing.assert_close(module(x), reference(module, x, x))


def test_causal_attention_equals_the_math_path_with_a_triangle(module: MultiHeadAttention) -> None:
    x = torch.randn(2, 11, D_MODEL)
    torch.testing.assert_close(module(x, causal=True), reference(module, x, x, torch.ones(11, 11).tril().bool()))


def test_attention_to_a_memory_equals_the_math_path(module: MultiHeadAttention) -> None:
    query, memory = torch.randn(2, 11, D_MODEL), torch.randn(2, 17, D_MODEL)
    mask = torch.rand(2, 1, 1, 17) < 0.7
    torch.testing.assert_close(module(query, memory, mask=mask), reference(module, query, memory, mask[:, 0]))


def test_equal_d_k_and_d_v_take_the_fast_kernel_to_the_same_result() -> None:
    fast = MultiHeadAttention(12, 2, d_k=6, d_v=6)
    x = torch.randn(2, 11, 12)
    with sdpa_kernel(SDPBackend.MATH):
        expected = fast(x, causal=True)
    torch.testing.assert_close(fast(x, causal=True), expected)


def test_the_stacked_projections_and_the_output_have_glorot_bounds(module: MultiHeadAttention) -> None:
    for matrix in (module.projection.weight, module.output.weight):
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.9 * bound < matrix.abs().max() <= bound
    assert not module.projection.bias.any()
    assert not module.output.bias.any()


def test_a_cache_fed_token_by_token_equals_all_at_once(module: MultiHeadAttention) -> None:
    x, cache = torch.randn(2, 11, D_MODEL), Cache()
    steps = [module(x[:, i : i + 1], cache=cache) for i in range(11)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x, causal=True))


def test_a_cached_memory_is_projected_once(module: MultiHeadAttention) -> None:
    query, memory, cache = torch.randn(2, 3, D_MODEL), torch.randn(2, 17, D_MODEL), Cache()
    expected = module(query, memory, cache=cache)
    torch.testing.assert_close(module(query, torch.full_like(memory, torch.nan), cache=cache), expected)


def test_keeping_rows_follows_the_order_given() -> None:
    x = torch.arange(7)[:, None].repeat(1, 2)
    assert keep_rows(x, 4, torch.tensor([[1, 3], [6, 5]]))[:, 1].tolist() == [0, 6, 2, 5]


@pytest.mark.parametrize("name", ["d_model", "heads", "d_k", "d_v"])
def test_an_illegal_size_is_named(name: str) -> None:
    sizes = {"d_model": 13, "heads": 3, "d_k": 5, "d_v": 7} | {name: 0}
    with pytest.raises(ValueError, match=f"model.{name} must be at least 1, got 0"):
        MultiHeadAttention(**sizes)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_training_on_a_cpu_is_close_to_float32(causal: bool) -> None:
    query, key, value = (torch.randn(2, HEADS, 11, D_K, requires_grad=True) for _ in range(3))
    mask = None if causal else (torch.rand(2, 1, 1, 11) < 0.7).index_fill(3, torch.tensor(0), True)
    expected = attention.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    half = (x.bfloat16() for x in (query, key, value))
    actual = attention.scaled_dot_product_attention(*half, mask=mask, causal=causal)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, atol=2**-6, rtol=0)  # values near 1, 8 bits, a few roundings
    expected_gradients = torch.autograd.grad(expected.square().sum(), [query, key, value])
    gradients = torch.autograd.grad(actual.float().square().sum(), [query, key, value])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert (gradient - expected_gradient).norm() < 2**-6 * expected_gradient.norm()
