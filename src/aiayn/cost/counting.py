"""What a model costs, counted from the model itself: parameters, and floating-point operations of training.

Nothing is computed. The model stands on torch's meta device, where tensors have a shape and no values, so that any
model is counted in a fraction of a second and without memory: the paper's, and what a user puts in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from aiayn.data.batching import Batch
from aiayn.model.model import Model


def parameters(model: nn.Module) -> int:
    """Trained numbers of the whole model (Table 3, last column)."""
    return sum(parameter.numel() for parameter in model.parameters())


def described_batch(pairs: int, source_length: int, target_length: int) -> Batch:
    """The shapes of a batch without padding, on the meta device.

    Args:
        pairs: Sentence pairs in it.
        source_length: Tokens of every source, with EOS.
        target_length: Tokens of every target that are predicted, EOS among them.
    """
    tokens = pairs * target_length
    shapes = {"source": (pairs, source_length), "target": (pairs, target_length + 1), "indices": (pairs,)}
    ids = {name: torch.empty(shape, dtype=torch.int64, device="meta") for name, shape in shapes.items()}
    positions = torch.empty(tokens, dtype=torch.int64, device="meta")
    return Batch(**ids, positions=positions, padded=False)


@contextmanager
def without_values(model: nn.Module) -> Iterator[None]:
    """Say of a model of one's own that fails on the meta device why it cannot be counted.

    Raises:
        ValueError: where the model raises anything.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} cannot be counted: it was run on tensors without values, and failed with "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def pair_flops(model: Model, *, source_length: int, target_length: int, pairs: int) -> float:
    """Floating-point operations of the matrix products in training on one sentence pair, as torch counts them.

    A multiplication with its addition counts as two. The backward pass is counted too, and the loss as the product with
    the matrix of the softmax, forward and backward: `training/loss/label_smoothing.py` forms the same three products,
    all of them in its forward pass. Attention counts as its formula does (equation 1), over the whole square of a
    sentence also where a query sees only what precedes it; a fused kernel leaves a part of that out, and computes
    scores twice. Softmax, normalisation and the optimizer are left out, as is padding. The paper itself multiplies
    seconds, devices and the sustained rate of a device instead.

    Args:
        model: On the meta device.
        source_length: Tokens, with EOS.
        target_length: Likewise.
        pairs: In a batch, over which what does not depend on them is shared.

    Raises:
        ValueError: if the model cannot be counted.
    """
    with without_values(model), FlopCounterMode(display=False) as counter:
        outputs = model(described_batch(pairs, source_length, target_length))
        sum(outputs.auxiliary.values(), model.project(outputs.features).sum()).backward()
    return counter.get_total_flops() / pairs


def mean_pair_flops(
    model: Model,
    *,
    source: np.ndarray,
    target: np.ndarray,
    pairs: int,
    mean: Callable[[np.ndarray], float] = np.mean,
) -> float:
    """As `pair_flops`, on average over the pairs of a corpus.

    What is done at every position grows with the lengths, attention with their squares and with their product. Five
    pairs are counted, and give the five coefficients.

    Args:
        model: On the meta device.
        source: Lengths, with EOS, `(pairs,)`.
        target: The same of the target side.
        pairs: As for `pair_flops`.
        mean: Of values of the pairs, where some are seen more often than others.

    Raises:
        ValueError: if the model cannot be counted.
    """
    unit = [
        max(1, int(mean(lengths)) // 3) for lengths in (source, target)
    ]  # all that is counted is thus below the mean
    counted = np.array([(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]) * unit
    flops = [pair_flops(model, source_length=int(s), target_length=int(t), pairs=pairs) for s, t in counted]
    coefficients = np.linalg.solve(np.stack(terms(*counted.T), axis=1), flops)
    return float(coefficients @ [mean(term) for term in terms(source, target)])


def terms(source: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
    """Of which the operations of pairs of such lengths are a sum, each times its coefficient."""
    return [source, target, source * source, target * target, source * target]
