"""How probable a model finds given translations: perplexity, and scores of single sentences."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from aiayn.data.tokenizer import BOS, EOS, Tokenizer
from aiayn.inference.ensemble import Ensemble
from aiayn.model.transformer import Transformer

PROJECTED = 1024  # target positions whose logits are in memory at once


@torch.inference_mode()
def log_likelihoods(
    model: Transformer | Ensemble,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    tokens_per_batch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Teacher-forced ln P(target | source) of every pair, unsmoothed.

    Args:
        model: In evaluation mode, on whatever device.
        tokenizer: The one it was trained with.
        sources: Plain text.
        targets: As many.
        tokens_per_batch: Sentences times the longest side, at most (one sentence at least); bounds memory only.

    Returns:
        Sums over each target's pieces and its EOS in nats, float64 `(pairs,)`, and how many those are, int64
        `(pairs,)`. Perplexity is `exp(-sum(first) / sum(second))`.
    """
    device = next(model.parameters()).device
    source, target = tokenizer.encode(sources), tokenizer.encode(targets)
    pieces = np.array([len(tokens) + 1 for tokens in target])
    longest = np.maximum([len(tokens) + 1 for tokens in source], pieces)
    sums = np.zeros(len(pieces))
    for rows in _batches(longest, tokens_per_batch):
        read = [torch.tensor([*source[row], EOS]) for row in rows]
        written = [torch.tensor([BOS, *target[row], EOS]) for row in rows]
        padded = pad_sequence(written, batch_first=True, padding_value=model.pad_id).to(device)
        labels = padded[:, 1:]
        features = model.features(
            pad_sequence(read, batch_first=True, padding_value=model.pad_id).to(device), padded[:, :-1]
        )
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


def _batches(lengths: np.ndarray, tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Rows of nearly equal length, as many together as the budget holds."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= tokens_per_batch:
            end += 1
        yield order[start:end]
        start = end
