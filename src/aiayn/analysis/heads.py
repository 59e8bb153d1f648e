"""What each attention head looks at, and what the model loses without it.

Three figures come from the weights of a teacher-forced pass over sentences with their references. How much a head is
needed is measured as in Michel et al. 2019, "Are Sixteen Heads Really Better than One?": its context is replaced by
zeros while the model translates, and nothing is trained again. All figures are arrays `(kinds, layers, heads)`, the
kinds in the order of `weights.KINDS`; they are NaN where a kind has fewer layers than another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from aiayn.analysis.weights import attentions, weights
from aiayn.evaluation.metric import Metric, Score
from aiayn.evaluation.significance import holm, p_value, resampled_sums
from aiayn.inference.scoring import batches
from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.model import Model
from aiayn.progress import progress

MEASURES = ("entropy", "distance", "confidence")
# sacreBLEU's 1,000 have no p-value below 1/1001, and Holm multiplies by the number of heads: 144 in the base model.
RESAMPLES = 10_000


def measures(
    model: Model, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], *, tokens_per_batch: int
) -> dict[str, np.ndarray]:
    """How every head spreads its attention, each figure a mean over all positions that ask (queries).

    - `entropy` of the weights, in nats: 0 for one position alone, ln n for n alike.
    - `distance` between the query and what it attends to, weighted, in positions. For attention across sentences both
      are taken relative to their sentence's length, and the difference times the source's: so many source positions
      from the diagonal.
    - `confidence`: the greatest weight. As in Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized
      Heads Do the Heavy Lifting, the Rest Can Be Pruned", EOS does not count, neither as a query nor as attended to.

    The first query of the decoder's self-attention sees itself alone, and counts: with entropy 0, confidence 1.

    Args:
        model: In evaluation mode.
        sources: Ids without BOS and EOS, `(source,)` each; an empty one is passed over, as it is never translated.
        targets: Their references, as many.
        tokens_per_batch: Sentences times the longest side, at most (one sentence at least); bounds memory only.

    Raises:
        ValueError: if no source holds a token, or the model's attention does not show its weights.
    """
    pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if len(source)]
    if not pairs:
        raise ValueError("there is nothing to attend to: all source sentences are empty.")
    sums = counts = torch.zeros((), dtype=torch.float64)
    with progress("measuring heads", total=len(pairs)) as advance:
        for rows, batch in batches(model, *zip(*pairs, strict=True), tokens_per_batch=tokens_per_batch):
            found = weights(model, batch)
            read = (batch.source != model.pad_id).sum(1)  # with EOS
            written = (batch.target[:, 1:] != model.pad_id).sum(1)  # queries: each predicts one of them, EOS at last
            kinds = [  # in their order
                _summed(found.encoder, read, read, words=(read - 1, read - 1)),
                _summed(found.decoder, written, written, words=(written, written)),
                _summed(found.cross, written, read, words=(written, read - 1)),
            ]
            deepest = max(kind[0].size(1) for kind in kinds)
            filled = [pad(kind[0], (0, 0, 0, deepest - kind[0].size(1)), value=torch.nan) for kind in kinds]
            sums = sums + torch.stack(filled)  # (kinds, measures, layers, heads)
            counts = counts + torch.stack([kind[1] for kind in kinds])  # (kinds, measures)
            advance(len(rows))
    means = (sums / counts[..., None, None]).numpy()
    return {name: means[:, number] for number, name in enumerate(MEASURES)}


def _summed(weights: Tensor, queries: Tensor, keys: Tensor, *, words: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Each measure of a batch summed over its queries, and how many those are.

    Args:
        weights: `(layers, batch, heads, query, key)`.
        queries: How many of each sentence are real, `(batch,)`; the rest is padding.
        keys: The same.
        words: Of both, how many are not EOS, which is the last.

    Returns:
        float64, `(measures, layers, heads)`, and `(measures,)`, on the CPU.
    """
    query = torch.arange(weights.size(-2), device=weights.device)
    key = torch.arange(weights.size(-1), device=weights.device)
    # The middle of each position as a share of its sentence; |query - key| where the two sentences are one.
    places = [(place + 0.5) / length[:, None] for place, length in ((query, queries), (key, keys))]
    apart = (places[0][:, :, None] - places[1][:, None]).abs() * keys[:, None, None]  # (batch, query, key)
    is_word = (key < words[1][:, None])[:, None, None]  # (batch, 1, 1, key)
    found = torch.stack(
        [
            torch.special.entr(weights).sum(-1),
            torch.einsum("lbhqk,bqk->lbhq", weights, apart),
            weights.masked_fill(~is_word, 0).amax(-1),
        ]
    )
    counted = torch.stack([query < length[:, None] for length in (queries, queries, words[0])])  # (3, batch, query)
    sums = torch.einsum("mlbhq,mbq->mlh", found.double(), counted.double())
    return sums.cpu(), counted.sum((1, 2)).cpu()


@contextmanager
def masked(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Take a head out for the length of a block: what it gathers counts as zero.

    The columns of W^O that read the head's context are zero meanwhile, so the model's own code runs unchanged, also
    step by step; afterwards they hold what they held, bit for bit.
    """
    columns = attention.output.weight.detach().chunk(attention.heads, dim=1)[head]  # (d_model, d_v)
    kept = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(kept)


def losses(
    model: Model, metric: Metric, measure: Callable[[], tuple[Score, np.ndarray]]
) -> tuple[Score, dict[str, np.ndarray]]:
    """The score of the model, and what is lost when one head is masked.

    Args:
        model: In evaluation mode.
        metric: What is measured.
        measure: The score of this very model as it is now, and each sentence's counts.

    Returns:
        The model's own score, and of every head `lost`, by how much the score is worse without it, which is negative
        where it is better; `p`, the chance of such a difference between equals (`significance.p_value`, 10,000
        resamples); and `p_holm`, the same adjusted for the number of heads.

    Raises:
        ValueError: if the model's attention has no heads to mask.
    """
    sign = 1 if metric.higher_is_better else -1
    kinds = attentions(model, "heads", "output")
    modules = [module for layers in kinds.values() for module in layers]
    places = [(attention, head) for attention in modules for head in range(attention.heads)]
    lost, counts = [], []
    with progress("masking heads", total=len(places)) as advance:
        full, whole = measure()
        for attention, head in places:
            with masked(attention, head):
                score, without = measure()
            lost.append(sign * (full.value - score.value))
            counts.append(without)
            advance(1, partial("{} {:.2f}".format, score.name, score.value))
    resampled = metric.value(resampled_sums([whole, *counts], RESAMPLES))  # (1 + heads, resamples)
    p = np.array([p_value(loss, resampled[0] - other) for loss, other in zip(lost, resampled[1:], strict=True)])
    figures = {"lost": np.array(lost), "p": p, "p_holm": holm(p)}
    return full, {name: _by_place(values, kinds) for name, values in figures.items()}


def _by_place(values: np.ndarray, kinds: Mapping[str, Sequence[MultiHeadAttention]]) -> np.ndarray:
    """Values of all heads, in order, as `(kinds, layers, heads)`; NaN where a kind has no such layer."""
    layers, heads = [len(modules) for modules in kinds.values()], next(iter(kinds.values()))[0].heads
    found = np.full((len(layers), max(layers), heads), np.nan)
    found[np.arange(max(layers)) < np.array(layers)[:, None]] = values.reshape(-1, heads)
    return found
