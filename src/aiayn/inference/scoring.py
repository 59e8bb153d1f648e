"""How probable a model finds given translations: perplexity, and scores of single sentences."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from aiayn.data.batching import Batch
from aiayn.data.ragged import Ragged
from aiayn.data.tokenizer import Vocabularies
from aiayn.model import likelihood
from aiayn.model.model import Model


@torch.inference_mode()
def log_likelihoods(
    model: Model,
    vocabularies: Vocabularies,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    tokens_per_batch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Teacher-forced ln P(target | source) of every pair, unsmoothed.

    Args:
        model: In evaluation mode, on whatever device.
        vocabularies: Those it was trained with.
        sources: Plain text.
        targets: As many.
        tokens_per_batch: Sentences times the longest side, at most (one sentence at least); bounds memory only.

    Returns:
        Sums over each target's pieces and its EOS in nats, float64 `(pairs,)`, and how many those are, int64
        `(pairs,)`. Perplexity is `exp(-sum(first) / sum(second))`.
    """
    source, target = vocabularies.source.encode(sources), vocabularies.target.encode(targets)
    pieces = np.array([len(tokens) + 1 for tokens in target])
    sums = np.zeros(len(pieces))
    for rows, batch in batches(model, source, target, tokens_per_batch=tokens_per_batch):
        sums[rows] = likelihood.log_likelihoods(model, batch).numpy()
    return sums, pieces


def batches(
    model: Model,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    *,
    tokens_per_batch: int,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Pairs of nearly equal length, as many together as the budget holds, padded, where the model is.

    Args:
        model: Whose device.
        sources: Ids without BOS and EOS, `(source,)` each.
        targets: As many.
        tokens_per_batch: Sentences times the longest side, at most (one sentence at least).

    Yields:
        Which pairs these are, `(pairs,)`, and what the model reads.
    """
    device = next(model.parameters()).device
    lengths = np.array([max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)])
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= tokens_per_batch:
            end += 1
        rows = order[start:end]
        read, written = (
            Ragged.join([side[row] for row in rows]).padded(np.arange(len(rows)), prefix=prefix)
            for side, prefix in ((sources, False), (targets, True))
        )
        yield rows, Batch.of(read, written, rows).to(device)
        start = end
