"""What training costs in floating-point operations (section 6.1, Table 2), counted from the sizes."""


def training_flops(
    *,
    layers: int,
    d_model: int,
    d_ff: int,
    heads: int,
    d_k: int,
    d_v: int,
    vocab_size: int,
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
        layers: N; the other sizes as in Table 3.
        source_tokens: Seen in training, repetitions counted.
        target_tokens: Likewise.
        source_length: Mean tokens of a source sentence as a token sees them: each attends to so many.
        target_length: Likewise; a target token attends to half of its sentence.
    """
    projections = heads * d_model * 2 * (d_k + d_v)  # query, key, value, output
    mixing = heads * (d_k + d_v)  # scores and weighted sum, for each attended token
    feed_forward = 2 * d_model * d_ff
    encoder = source_tokens * (projections + feed_forward + mixing * source_length)
    own = target_tokens * (projections + feed_forward + mixing * target_length / 2)
    keys_and_values = heads * d_model * (d_k + d_v)
    across = target_tokens * (keys_and_values + mixing * source_length) + source_tokens * keys_and_values
    multiplications = layers * (encoder + own + across) + target_tokens * d_model * vocab_size
    return 3 * 2 * multiplications
