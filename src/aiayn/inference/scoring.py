"""How probable a model finds given translations: perplexity, and scores of single sentences."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from aiayn.data.tokenizer import BOS, EOS, Vocabularies
from aiayn.inference.ensemble import Ensemble
from aiayn.model.transformer import Transformer

PROJECTED = 1024  # target positions whose logits are in memory at once


@torch.inference_mode()
def log_likelihoods(
    model: Transformer | Ensemble,
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
    for rows, read, written in batches(model, source, target, tokens_per_batch=tokens_per_batch):
        labels = written[:, 1:]
        features = model.features(read, written[:, :-1])
        real = labels != model.pad_id
        found = torch.zeros(labels.shape, dtype=torch.float64)
        found[real.cpu()] = torch.cat(
            [
                _gathered(model, part, label)
                for part, label in zip(features[real].split(PROJECTED), labels[real].split(PROJECTED), strict=True)
            ]
        )
        sums[rows] = found.sum(1).numpy()
    return sums, pieces


def _gathered(model: Transformer | Ensemble, features: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities of `labels` `(positions,)`, on the CPU."""
    return -functional.cross_entropy(model.project(features).float(), labels, reduction="none").double().cpu()


def batches(
    model: Transformer | Ensemble,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    *,
    tokens_per_batch: int,
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Pairs of nearly equal length, as many together as the budget holds, padded, where the model is.

    Args:
        model: Whose device, and whose padding.
        sources: Ids without BOS and EOS, `(source,)` each.
        targets: As many.
        tokens_per_batch: Sentences times the longest side, at most (one sentence at least).

    Yields:
        Which pairs these are, `(pairs,)`; sources with EOS, `(pairs, source)`; targets from BOS to EOS,
        `(pairs, target)`.
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
        sides = (
            [torch.tensor([*sources[row], EOS]) for row in rows],
            [torch.tensor([BOS, *targets[row], EOS]) for row in rows],
        )
        read, written = (pad_sequence(side, batch_first=True, padding_value=model.pad_id).to(device) for side in sides)
        yield rows, read, written
        start = end
