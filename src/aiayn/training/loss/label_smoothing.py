"""The training loss of section 5.4: cross-entropy with label smoothing, fused with the projection onto the vocabulary.

The logits of a batch are its largest tensor (tokens x vocabulary), and nothing needs all of them at once. So they are
made, turned into gradients and dropped a chunk of tokens at a time: the chunk stays in the cache of a CPU and bounds
the memory of a GPU. The gradient of a sum over tokens is known as soon as the logits are, so the forward pass forms it
and the backward pass only scales it. Kernels known as "fused linear cross-entropy" do the same. On a CPU this takes
half the time of `linear` and `cross_entropy` over all tokens, and under bfloat16 a quarter.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

# Elements of one chunk of logits. On a CPU more means fewer additions to the weight's gradient, until a chunk leaves
# the cache; on a GPU more fills the device, until memory is short (half a gigabyte in bfloat16).
CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}


def label_smoothed_cross_entropy(
    features: Tensor, weight: Tensor, labels: Tensor, *, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sum over tokens the cross-entropy between smoothed labels and softmax(features weight^T) (section 5.4).

    The smoothing mass goes to the wrong words alone, as in the paper's code (tensor2tensor, common_layers.py:
    smoothing_cross_entropy): a label has 1 - eps on its own word and eps / (V - 1) on each of the others. torch's
    `cross_entropy` spreads its mass over all V words; it is the same loss at `label_smoothing = eps V / (V - 1)`.
    The entropy of the smoothed labels, a constant, is not subtracted.

    In training under autocast to bfloat16 the products and the probabilities are bfloat16, sums are float32. Under
    float16, whose range is too small for probabilities, all is computed in float32; so is all that needs no gradient,
    since perplexities are published to three digits.

    Args:
        features: Decoder output, `(tokens, d_model)`; real positions only.
        weight: The matrix before the softmax, `(vocab_size, d_model)`.
        labels: Ids of the words to predict, `(tokens,)`.
        label_smoothing: eps, the probability moved from the right word to the others.

    Returns:
        The loss, differentiable in features and weight, and the unsmoothed negative log-likelihood, detached. Both are
        sums over tokens in nats. A token's likelihood is taken as the smallest normal number (87 nats) if below it.
    """
    device = features.device.type
    dtype = torch.promote_types(features.dtype, weight.dtype)
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    if autocast and torch.is_grad_enabled():
        dtype = torch.bfloat16
    with torch.autocast(device, enabled=False):
        return _ProjectedCrossEntropy.apply(features, weight, labels, label_smoothing, dtype, torch.is_grad_enabled())


class _ProjectedCrossEntropy(Function):
    """Form the loss and its gradients in the forward pass, a chunk of tokens at a time.

    A smoothed label has `mass_each` on every word and `peak` more on its own word y. So a token with logits z costs
    log Z - peak z_y - mass_each sum(z), and the gradient is softmax(z) - peak [y] - mass_each. The terms with mass_each
    are linear in the features: they are computed once for all tokens, not once per logit.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight.size(0)
        mass_each = label_smoothing / (vocab_size - 1)
        peak = 1 - label_smoothing - mass_each
        sum_dtype = torch.promote_types(dtype, torch.float32)
        mass_weight = mass_each * weight.sum(0, dtype=sum_dtype)  # (d_model)
        feature_sum = features.sum(0, dtype=sum_dtype)  # (d_model)

        loss = -(feature_sum @ mass_weight)
        nll = torch.zeros_like(loss)
        if with_gradients:
            features_gradient = torch.empty_like(features)
            weight_gradient = (-mass_each * feature_sum).repeat(vocab_size, 1)
        cast_weight = weight.to(dtype)
        rows = max(1, CHUNK_ELEMENTS.get(features.device.type, CHUNK_ELEMENTS["cuda"]) // vocab_size)
        for start in range(0, len(labels), rows):
            tokens = slice(start, start + rows)
            chunk, label = features[tokens].to(dtype), labels[tokens]
            own = torch.arange(len(label), device=label.device), label  # one logit of each row: that of its label
            logits = chunk @ cast_weight.t()  # (rows, vocab_size)
            gold = logits[own].sum(dtype=sum_dtype)
            probabilities = torch.softmax(logits, dim=1, out=logits)  # in place: the chunk stays in the cache
            likelihood = probabilities[own]
            chunk_nll = -likelihood.to(sum_dtype).clamp(min=torch.finfo(sum_dtype).tiny).log().sum()
            nll += chunk_nll
            loss += chunk_nll + (1 - peak) * gold  # log Z = nll + z_y
            if with_gradients:
                probabilities[own] = likelihood - peak
                features_gradient[tokens] = torch.addmm(-mass_weight.to(dtype), probabilities, cast_weight)
                weight_gradient += probabilities.t() @ chunk
        if with_gradients:
            ctx.save_for_backward(features_gradient, weight_gradient)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        features_gradient, weight_gradient = ctx.saved_tensors  # type: ignore[attr-defined]
        return loss_gradient * features_gradient, loss_gradient * weight_gradient, None, None, None, None
