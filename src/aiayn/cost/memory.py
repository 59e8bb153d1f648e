"""What training a model needs of a device's memory, estimated from the model itself, on the meta device."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from aiayn.cost.counting import described_batch, parameters, without_values
from aiayn.model.model import Model
from aiayn.training.loss.label_smoothing import CHUNK_ELEMENTS

# What mixed precision computes in bfloat16, by the names of functions, methods and operators, and in float32
# (pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast").
IN_BFLOAT16 = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum"}
IN_BFLOAT16 |= {"scaled_dot_product_attention", "conv1d"}
IN_FLOAT32 = {"layer_norm", "softmax", "log_softmax", "logsumexp", "exp", "pow", "rsqrt", "sum", "cumsum", "norm"}


def activation_bytes(model: Model, *, pairs: int, length: int, bfloat16: bool) -> int:
    """What the forward pass keeps for the backward pass on a GPU, whatever the model is; without the loss.

    Args:
        model: On the meta device, in training mode.
        pairs: Of sentences, in a micro-batch.
        length: Tokens of each side of a pair.
        bfloat16: Mixed precision, else float32.

    Raises:
        ValueError: if the model cannot be counted.
    """
    kept: set[torch.UntypedStorage] = set()

    def keep(tensor: Tensor) -> Tensor:
        kept.add(tensor.untyped_storage())
        return tensor

    batch = described_batch(pairs, length, length)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with without_values(model), _Gpu(bfloat16=bfloat16) as gpu, hooks:
        model(batch)
    weights = {weight.untyped_storage() for weight in (*model.parameters(), *gpu.weights)}
    return sum(storage.nbytes() for storage in kept - weights)


class _Gpu(TorchFunctionMode):
    """Lets tensors without values be kept as on a GPU: attention in a fused kernel, dropout's masks, mixed precision.

    Attributes:
        weights: In bfloat16, those that were cast.
    """

    def __init__(self, *, bfloat16: bool) -> None:
        super().__init__()
        self.bfloat16 = bfloat16
        self.weights: list[Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if self.bfloat16 and function.__name__ in IN_BFLOAT16:
            args, kwargs = tree_map(self._to_bfloat16, (args, kwargs))
        if self.bfloat16 and function.__name__ in IN_FLOAT32:
            args, kwargs = tree_map(_to_float32, (args, kwargs))
        if function is functional.scaled_dot_product_attention:
            return _fused_attention(*args, **kwargs)
        if function is functional.dropout:
            return _dropout(*args, **kwargs)
        return function(*args, **kwargs)

    def _to_bfloat16(self, x: object) -> object:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            return x
        lower = x.to(torch.bfloat16)
        if isinstance(x, nn.Parameter):
            self.weights.append(lower)
        return lower


def _to_float32(x: object) -> object:
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: object,
) -> Tensor:
    """Keeps its arguments, the context, and of each softmax the logarithm of its sum."""
    bias = None if attn_mask is None else attn_mask.to(query.dtype)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, bias, True, dropout_p, is_causal)[0]


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Keeps a byte for each element."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def training_memory(model: Model, *, activations: float, tokens: float, bfloat16: bool, devices: int) -> float:
    """Bytes that a GPU needs at most, which is while it computes the loss of a micro-batch.

    Weights, gradients and Adam's two moments, whatever the optimizer is, are float32; mixed precision casts the weights
    besides, and data-parallel training copies the gradients to where they are averaged. Neither the CUDA context (about
    half a GiB) nor what the allocator cannot use is in it; on a CPU the latter was half as much again.

    Args:
        model: On the meta device.
        activations: `activation_bytes` of a micro-batch, for each token of a side.
        tokens: Of each side of a micro-batch.
        bfloat16: Mixed precision, else float32.
        devices: That train together.
    """
    vocab_size, d_model = model.output_weight.shape
    operand = 2 if bfloat16 else 4
    each = 4 * 4 + (4 if devices > 1 else 0) + (2 if bfloat16 else 0)
    weights = each * parameters(model)
    logits = operand * min(CHUNK_ELEMENTS["cuda"], tokens * vocab_size)
    gradients = (4 + operand) * vocab_size * d_model  # of the softmax's matrix: their sum, and those of a chunk
    features = 3 * 4 * tokens * d_model  # the decoder's output, its real positions, their gradient
    return weights + activations * tokens + logits + gradients + features
