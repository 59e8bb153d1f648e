"""What a model costs, counted from its sizes: parameters, memory, and floating-point operations of training.

The model is the one that `model=base` and the like describe, biases included.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

# Elements of a chunk of logits on a GPU: training/loss.py, CHUNK_ELEMENTS.
LOGITS = 2**28


@dataclass(frozen=True)
class Sizes:
    """Of a model, by their names in Table 3.

    Attributes:
        layers: N, of the encoder and of the decoder.
        vocab_size: Rows of the one matrix that embeds and predicts.
        learned_positions: Of each side; 0 for sinusoids, which are not trained.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    vocab_size: int
    learned_positions: int = 0

    @classmethod
    def of(cls, model: Mapping[str, Any], *, vocab_size: int, learned_positions: int = 0) -> Self:
        """The sizes in a `model` config."""
        six = {key: model[key] for key in ("layers", "d_model", "d_ff", "heads", "d_k", "d_v")}
        return cls(**six, vocab_size=vocab_size, learned_positions=learned_positions)


def parameters(sizes: Sizes) -> int:
    """Trained numbers of the whole model (Table 3, last column)."""
    heads, d_model, d_k, d_v = sizes.heads, sizes.d_model, sizes.d_k, sizes.d_v
    attention = heads * (2 * d_k + d_v) * (d_model + 1) + (heads * d_v + 1) * d_model
    feed_forward = (d_model + 1) * sizes.d_ff + (sizes.d_ff + 1) * d_model
    norm = 2 * d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return sizes.layers * (encoder + decoder) + (sizes.vocab_size + 2 * sizes.learned_positions) * d_model


def activation_bytes(sizes: Sizes, *, dropout: float, tokens: float, bfloat16: bool) -> float:
    """What the forward pass keeps for the backward pass, with attention in a fused kernel; without the loss.

    A matrix product keeps its operand, fused attention its query, key, value, context and the logarithm of each
    softmax's sum, a normalisation its input and two statistics, dropout a byte for each element. Under mixed precision
    the operands are bfloat16; the sums that are normalised stay float32, and every layer casts the encoder's output
    anew.

    Args:
        sizes: Of the model.
        dropout: Its rate; at 0 nothing is kept.
        tokens: Of each side of a micro-batch.
        bfloat16: Mixed precision, else float32.
    """
    d_model, operand = sizes.d_model, 2 if bfloat16 else 4
    attention = operand * (d_model + 2 * sizes.heads * (sizes.d_k + sizes.d_v)) + 4 * sizes.heads
    feed_forward = operand * (d_model + sizes.d_ff)
    dropped = d_model if dropout else 0
    residual = 4 * d_model + 8 + dropped
    memory = operand * d_model
    layer = 3 * attention + 2 * feed_forward + 5 * residual  # encoder and decoder together
    if bfloat16:  # self-attention's input is cast for either of its maps
        layer += 2 * operand * d_model
    ends = 2 * (dropped + 8)  # the sums of embeddings and positions; 8: an id
    return tokens * (sizes.layers * layer + memory * (sizes.layers if bfloat16 else 1) + ends)


def training_memory(sizes: Sizes, *, dropout: float, tokens: float, bfloat16: bool, devices: int) -> float:
    """Bytes that a GPU needs at most, which is while it computes the loss of a micro-batch.

    Weights, gradients and Adam's two moments are float32; mixed precision casts the weights besides, and data-parallel
    training copies the gradients to where they are averaged. Neither the CUDA context (about half a GiB) nor what the
    allocator cannot use is in it; on a CPU the latter was half as much again.

    Args:
        sizes: Of the model.
        dropout: As for `activation_bytes`, like `tokens` and `bfloat16`.
        devices: That train together.
    """
    operand, matrix = 2 if bfloat16 else 4, sizes.vocab_size * sizes.d_model
    each = 4 * 4 + (4 if devices > 1 else 0) + (2 if bfloat16 else 0)
    weights = each * parameters(sizes)
    activations = activation_bytes(sizes, dropout=dropout, tokens=tokens, bfloat16=bfloat16)
    logits = operand * min(LOGITS, tokens * sizes.vocab_size)
    gradients = (4 + operand) * matrix  # of the shared matrix: their sum, and those of a chunk
    features = 3 * 4 * tokens * sizes.d_model  # the decoder's output, its real positions, their gradient
    return weights + activations + logits + gradients + features


def training_flops(
    sizes: Sizes,
    *,
    source_tokens: float,
    target_tokens: float,
    source_length: float,
    target_length: float,
) -> float:
    """Floating-point operations of the matrix products in training on that many tokens.

    A multiplication with its addition counts as two; the backward pass costs twice the forward pass. Softmax,
    normalisation and the optimizer are left out, as is padding. The paper itself multiplies seconds, devices and the
    sustained rate of a device instead.

    Args:
        sizes: Of the model.
        source_tokens: Seen in training, repetitions counted.
        target_tokens: Likewise.
        source_length: Mean tokens of a source sentence as a token sees them: each attends to so many.
        target_length: Likewise; a target token attends to half of its sentence.
    """
    mixing = sizes.heads * (sizes.d_k + sizes.d_v)  # scores and weighted sum, for each attended token
    projections = 2 * sizes.d_model * mixing  # query, key, value, output
    feed_forward = 2 * sizes.d_model * sizes.d_ff
    encoder = source_tokens * (projections + feed_forward + mixing * source_length)
    own = target_tokens * (projections + feed_forward + mixing * target_length / 2)
    keys_and_values = sizes.d_model * mixing
    across = target_tokens * (keys_and_values + mixing * source_length) + source_tokens * keys_and_values
    multiplications = sizes.layers * (encoder + own + across) + target_tokens * sizes.d_model * sizes.vocab_size
    return 3 * 2 * multiplications
