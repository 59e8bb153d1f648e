"""Ancestral sampling, batched, over the model's `start` and `step`: each token is drawn from what the model predicts.

The distribution may be sharpened or cut first, in this order: by a temperature (Ackley et al. 1985), to the `top_k`
most probable tokens (Fan et al. 2018), to the fewest most probable ones that have `top_p` of the probability together,
the nucleus (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1). What is left is drawn
from in proportion. UNK, PAD and BOS are left out before all of this, and a target of the greatest length is ended, as
in `beam_search`.

The draws of a sentence come from a generator of its own, made of the seed and the sentence's tokens. So they do not
depend on its number, on the batch or on the window that it is in, or on who asks a service at the same time; a sentence
that comes twice has the same samples. (What the model computes may differ between batches by rounding; where that meets
a draw, one in about a million, the token is another.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aiayn.data.tokenizer import BOS, EOS, UNK
from aiayn.inference.beam_search import NEVER, Hypothesis, batches, check_limit, length_penalty, rows_of
from aiayn.model.model import Model

LEAST = 1e-9  # a temperature below is taken for this one, at which the most probable token alone is left


def check(*, temperature: float, top_k: int | None, top_p: float | None, seed: int, n_best: int) -> None:
    """Refuse settings that mean nothing; they are those of `decode`.

    Raises:
        ValueError: that names the setting.
    """
    if not 0 <= temperature < np.inf:
        raise ValueError(f"inference.temperature must be at least 0, got {temperature}; 1 is the model's own.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"inference.top_k must be at least 1, or null for all tokens, got {top_k}.")
    if top_p is not None and not 0 <= top_p <= 1:
        raise ValueError(f"inference.top_p must be from 0 to 1, or null for all tokens, got {top_p}.")
    if seed < 0:
        raise ValueError(f"inference.seed must be at least 0, got {seed}.")
    if n_best < 1:
        raise ValueError(f"n_best must be at least 1, got {n_best}.")


@torch.inference_mode()
def decode(
    model: Model,
    sources: Sequence[np.ndarray],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 1,
    alpha: float = 0.6,
    beta: float = 5.0,
    max_extra_length: int = 50,
    tokens_per_batch: int = 4096,
    n_best: int = 1,
    progress: Callable[[int], None] = lambda sentences: None,
) -> list[list[Hypothesis]]:
    """Draw `n_best` translations of each encoded sentence.

    Args:
        model: On whatever device; searched in evaluation mode, left in the mode it was in.
        sources: Ids without BOS and EOS, `(source,)` each.
        temperature: Divides the logits; 0 leaves the most probable token alone.
        top_k: How many of the most probable tokens are left; None: all.
        top_p: Their probability together, at least; None: all.
        seed: Another one gives other samples.
        alpha: Of the length penalty, in the scores.
        beta: The same.
        max_extra_length: A target, with EOS, has at most this many tokens more than its source, with EOS.
        tokens_per_batch: As in `beam_search.decode`; each sample is a sentence.
        n_best: Samples of each sentence; the first ones are the same for every number.
        progress: Called with the number of sentences of each batch that is done.

    Returns:
        For each sentence its samples in the order drawn, equal ones too, with the model's own log-probability, that of
        temperature 1 and all tokens.

    Raises:
        ValueError: as `check`, or if the model's logits are not numbers.
    """
    check(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, n_best=n_best)
    check_limit(max_extra_length)
    kept = _Kept(temperature, top_k, top_p)
    each = [source for source in sources for _ in range(n_best)]
    samples: list[Hypothesis] = [Hypothesis([], 0.0, 0.0)] * len(each)
    for indices, source in batches(model, each, tokens_per_batch=tokens_per_batch, extra=max_extra_length):
        limit = (source != model.pad_id).sum(1) + max_extra_length
        if model.longest is not None:
            limit = limit.clamp(max=model.longest)
        draws = np.zeros((len(indices), int(limit.max())))
        for row, index in enumerate(indices):
            own = np.random.default_rng([seed, index % n_best, *each[index].tolist()])
            draws[row] = own.random(draws.shape[1])
        found = _sample(model, source, torch.from_numpy(draws).to(source.device), limit, kept)
        for index, (tokens, log_probability) in zip(indices, found, strict=True):
            score = log_probability / length_penalty(len(tokens) + 1, alpha, beta).item()
            samples[index] = Hypothesis(tokens, score, log_probability)
        progress(int(np.sum(indices % n_best == n_best - 1)))
    return [samples[start : start + n_best] for start in range(0, len(each), n_best)]


class _Kept:
    """What is left of a distribution."""

    def __init__(self, temperature: float, top_k: int | None, top_p: float | None) -> None:
        self.temperature, self.top_k, self.top_p = max(temperature, LEAST), top_k, top_p

    def __call__(self, scores: Tensor) -> Tensor:
        """Probabilities, `(batch, vocab)`, of tokens with `scores` `(batch, vocab)`: logits, or their logarithms."""
        scores = (scores.double() - scores.amax(1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < scores.size(1):
            scores = scores.scatter(1, scores.argsort(dim=1, descending=True, stable=True)[:, self.top_k :], NEVER)
        probability = scores.softmax(1)
        if self.top_p is not None:
            ordered, order = probability.sort(dim=1, descending=True, stable=True)
            enough = ordered.cumsum(1) - ordered >= self.top_p  # those before it are the nucleus
            enough[:, 0] = False  # one is always left
            probability = probability.scatter(1, order, ordered.masked_fill(enough, 0))
        return probability


def _sample(model: Model, source: Tensor, draws: Tensor, limit: Tensor, kept: _Kept) -> list[tuple[list[int], float]]:
    """Tokens without EOS, and log-probability with it, of one sample of each row.

    Args:
        model: In evaluation mode.
        source: `(batch, source)`, each with EOS, padded.
        draws: Uniform from 0 to below 1, `(batch, length)`, one for each token.
        limit: Greatest length of a target, with EOS, `(batch,)`.
        kept: Cuts a distribution.
    """
    state: Any = model.start(source)
    rows = torch.arange(len(source), device=source.device)  # that still go on
    no_text = torch.tensor([model.pad_id, UNK, BOS], device=source.device)
    token = torch.full_like(rows, BOS)
    tokens = torch.full_like(draws, EOS, dtype=torch.long)  # (batch, length)
    total = torch.zeros_like(draws[:, 0])  # log-probability, (batch,)
    for position in range(draws.size(1)):
        log_probability = model.step(token[:, None], state)[:, 0].float().log_softmax(1)  # (rows, vocab)
        cumulative = kept(log_probability.index_fill(1, no_text, NEVER)).cumsum(1)
        wanted = draws[rows, position, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
        token = token.clamp(max=cumulative.size(1) - 1)  # where probabilities are no numbers, which is refused below
        token = token.where(limit[rows] > position + 1, EOS)
        tokens[rows, position] = token
        total[rows] += log_probability.gather(1, token[:, None])[:, 0]
        are_numbers = log_probability.isfinite().any(1)
        live, numbers = torch.stack([token != EOS, are_numbers]).cpu().numpy()  # here the device is waited for
        if not numbers.all():
            raise ValueError("The model's logits are not numbers, so nothing can be decoded. Its training diverged.")
        going = rows_of(live)
        if not going:
            break
        if len(going) < len(rows):
            index = torch.tensor(going).to(rows.device, non_blocking=True)
            rows, token = rows[index], token[index]
            state.select(going)
    ends = [row.index(EOS) for row in tokens.tolist()]
    return [(row[:end], score) for row, end, score in zip(tokens.tolist(), ends, total.tolist(), strict=True)]
