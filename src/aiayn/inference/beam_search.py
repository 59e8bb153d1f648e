"""Beam search (section 6.1), batched, over the model's `start` and `step`; greedy decoding is beam 1.

A beam has `beam` places for the hypotheses of a sentence. A hypothesis that ends keeps its place, and only the others
go on; so a beam of one is the greedy search, and no more than `beam` hypotheses end. A finished hypothesis of `length`
tokens, EOS among them, scores log P(target | source) / lp(length), with
lp(length) = ((beta + length) / (beta + 1))^alpha. With beta 5 it is that of Wu et al. 2016 (equation 14, without the
coverage penalty; tensor2tensor counts EOS too), with beta 0 the length^alpha of fairseq and Marian; Sockeye has both.

The search for a sentence ends when none of its live hypotheses can still become one of the `n_best` that are wanted.
Log-probabilities only fall and lp only rises, so a live hypothesis scores at most log P / lp(limit), `limit` being the
greatest length. There EOS is the only choice. Stopping so never costs one of the `n_best`; later ones may be missing.

A step asks the device once for values, at its end: which hypotheses have ended and which go on. All else that decides
what is computed, such as the limits, is known on the host, so that a GPU rarely waits.

UNK is never chosen, as in Marian (marian-nmt/marian-dev:src/translator/beam_search.cpp, without --allow-unk): it stands
for no text. Like that of PAD and BOS, its probability goes to no other token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aiayn.data.tokenizer import BOS, EOS, UNK
from aiayn.inference.well_formed import Symbols, Trees
from aiayn.model.model import Model

NEVER = -torch.inf
GROUP = 160  # tokens of the vocabulary, of which a maximum is taken
REMOVED = 1 / 8  # done sentences leave the batch when they are this share of it: the copying is then amortised


@dataclass(frozen=True)
class Hypothesis:
    """A translation: `tokens` without BOS and EOS, `log_probability` with EOS, `score` normalised by length."""

    tokens: list[int]
    score: float
    log_probability: float


def length_penalty(length: Tensor | int, alpha: float, beta: float = 5.0) -> Tensor:
    """lp(length) = ((beta + length) / (beta + 1))^alpha."""
    return ((beta + torch.as_tensor(length)) / (beta + 1)) ** alpha


def check(*, beam: int, alpha: float, beta: float, max_extra_length: int, n_best: int) -> None:
    """Refuse settings of a search that mean nothing; they are those of `search`.

    Raises:
        ValueError: that names the setting.
    """
    if beam < 1:
        raise ValueError(f"inference.beam must be at least 1, got {beam}. 1 is greedy search, the paper has 4.")
    if alpha < 0:
        raise ValueError(f"inference.alpha must not be negative, got {alpha}. The paper has 0.6; 0 is no penalty.")
    if beta < 0:
        raise ValueError(
            f"inference.beta must not be negative, got {beta}. Wu et al. have 5; with 0 it is length^alpha."
        )
    check_limit(max_extra_length)
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be from 1 to inference.beam, got n_best={n_best}, inference.beam={beam}.")


def check_limit(max_extra_length: int) -> None:
    """Refuse a limit of targets that means nothing.

    Raises:
        ValueError: that names the setting.
    """
    if max_extra_length < 0:
        raise ValueError(f"inference.max_extra_length must not be negative, got {max_extra_length}. The paper has 50.")


@torch.inference_mode()
def search(
    model: Model,
    source: Tensor,
    *,
    beam: int = 4,
    alpha: float = 0.6,
    beta: float = 5.0,
    max_extra_length: int = 50,
    n_best: int = 1,
    symbols: Symbols | None = None,
) -> list[list[Hypothesis]]:
    """Find likely targets; the same ones for a sentence alone and in a batch.

    Args:
        model: In evaluation mode.
        source: `(batch, source)`, each with EOS, padded.
        beam: Hypotheses for each sentence.
        alpha: Exponent of the length penalty; 0 prefers short targets, 1 compares probabilities per token.
        beta: Of the length penalty; the smaller, the more a short target is penalised.
        max_extra_length: A target, with EOS, has at most this many tokens more than its source, with EOS.
        n_best: How many hypotheses are wanted; the search goes on until no other can be among them.
        symbols: Of the vocabulary, for targets that are trees; None: targets are free.

    Returns:
        For each sentence its finished hypotheses, at least one and at most `beam`, best first; without BOS and padding.

    Raises:
        ValueError: as `check`, or if the model's logits are not numbers.
    """
    check(beam=beam, alpha=alpha, beta=beta, max_extra_length=max_extra_length, n_best=n_best)
    limit = (source != model.pad_id).sum(1) + max_extra_length
    if model.longest is not None:
        limit = limit.clamp(max=model.longest)
    beams = _Beams(
        limit,
        beam=beam,
        length_penalty=partial(length_penalty, alpha=alpha, beta=beta),
        n_best=n_best,
        forbidden=(model.pad_id, UNK, BOS),
        trees=None if symbols is None else symbols.trees(source, limit),
    )
    state: Any = model.start(source)
    while beams.limits:
        logits = model.step(beams.tokens[:, :, -1], state)
        state.reorder(beams.extend(logits.float()))
        rows = beams.rows_to_keep()
        if rows is not None:
            beams.select(rows)
            state.select(rows)
    return beams.hypotheses(len(source))


class _Beams:
    """The live hypotheses of a batch, and the finished ones.

    A row is a sentence. A live hypothesis has a finite log-probability; within a row they are sorted, best first.
    """

    def __init__(
        self,
        limit: Tensor,
        *,
        beam: int,
        length_penalty: Callable[[Tensor | int], Tensor],
        n_best: int,
        forbidden: Sequence[int],
        trees: Trees | None,
    ) -> None:
        rows, device = len(limit), limit.device
        self.beam, self.length_penalty, self.forbidden = beam, length_penalty, torch.tensor(forbidden, device=device)
        self.sentences = list(range(rows))  # which sentence a row is
        self.limit, self.limits = limit, limit.tolist()  # greatest length, (rows,); on the host too
        self.penalty = length_penalty(limit)  # of the greatest length, (rows,)
        self.place = torch.arange(beam, device=device)
        self.places = torch.full((rows,), beam, device=device)  # not taken by finished hypotheses, (rows,)
        self.best = torch.full((rows, n_best), NEVER, device=device)  # scores of the best finished ones, (rows, n_best)
        self.log_probability = torch.zeros(rows, 1, device=device)  # (rows, beam)
        self.tokens = torch.full((rows, 1, 1), BOS, device=device)  # from BOS on, (rows, beam, length)
        self.live = np.ones((rows, 1), dtype=bool)  # on the host, (rows, beam)
        self.trees = trees
        self.finished: list[tuple[list[int], Tensor, Tensor, Tensor]] = []

    def extend(self, logits: Tensor) -> Tensor:
        """Take the most likely next tokens of each row, given `logits` `(rows, beam, vocab)`.

        Returns:
            For each hypothesis that goes on the one that it continues, `(rows, new beam)`.
        """
        log_probability, parent, token = self._candidates(logits)
        log_probability.masked_fill_(self.place[: log_probability.size(1)] >= self.places[:, None], NEVER)
        ended = (token == EOS) & (log_probability > NEVER)
        score = log_probability / self.length_penalty(self.tokens.size(2))
        self.best = torch.cat([self.best, score.masked_fill(~ended, NEVER)], dim=1).topk(self.best.size(1)).values
        self.places -= ended.sum(1)
        going = log_probability.masked_fill(ended, NEVER)
        hopeless = going.amax(1) / self.penalty <= self.best[:, -1]
        going.masked_fill_(hopeless[:, None], NEVER)
        has_ended, self.live = torch.stack([ended, going > NEVER]).cpu().numpy()  # here the device is waited for
        if has_ended.any():
            self._finish(has_ended, parent, score, log_probability)

        going, order = going.sort(dim=1, descending=True, stable=True)
        width = self.live.sum(1).max()  # of the row with most live hypotheses
        self.log_probability, order = going[:, :width], order[:, :width]
        parent, token = parent.gather(1, order), token.gather(1, order)
        self.tokens = torch.cat([_gather(self.tokens, parent), token[:, :, None]], dim=2)
        if self.trees is not None:
            self.trees.follow(parent, token)
        return parent

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each row, best first: log-probability, parent and token, each `(rows, beam)`."""
        scores = logits.log_softmax(2)
        scores.index_fill_(2, self.forbidden, NEVER)
        if self.trees is not None:
            scores.masked_fill_(~self.trees.allowed(), NEVER)
        if min(self.limits) <= self.tokens.size(2):
            ending = scores[:, :, EOS].clone()
            scores.masked_fill_((self.limit <= self.tokens.size(2))[:, None, None], NEVER)
            scores[:, :, EOS] = ending
        # The best of a row are among the best of each of its hypotheses.
        scores, token = top(scores, min(self.beam, scores.size(2)))  # (rows, beam, continuations)
        log_probability = (self.log_probability[:, :, None] + scores).flatten(1)
        log_probability, index = log_probability.sort(dim=1, descending=True, stable=True)
        log_probability, index = log_probability[:, : self.beam], index[:, : self.beam]
        return log_probability, index // scores.size(2), token.flatten(1).gather(1, index)

    def _finish(self, ended: np.ndarray, parent: Tensor, score: Tensor, log_probability: Tensor) -> None:
        """Put aside the hypotheses that EOS was added to, where `ended` `(rows, beam)` is True."""
        where = np.stack(ended.nonzero())  # rows and places, (2, hypotheses)
        rows, places = torch.from_numpy(where).to(parent.device, non_blocking=True)
        tokens = self.tokens[rows, parent[rows, places], 1:]
        sentences = [self.sentences[row] for row in where[0]]
        self.finished.append((sentences, tokens, score[rows, places], log_probability[rows, places]))

    def rows_to_keep(self) -> list[int] | None:
        """Rows with live hypotheses, as `rows_of` has them; None while too few are done for a removal to pay."""
        live: np.ndarray = np.any(self.live, axis=1)
        return None if live.sum() > (1 - REMOVED) * len(live) else rows_of(live)

    def select(self, rows: list[int]) -> None:
        """Keep `rows`."""
        self.sentences, self.limits = ([known[row] for row in rows] for known in (self.sentences, self.limits))
        index = torch.tensor(rows, dtype=torch.long).to(self.limit.device, non_blocking=True)
        for name in ("limit", "penalty", "places", "best", "log_probability", "tokens"):
            setattr(self, name, getattr(self, name)[index])
        if self.trees is not None:
            self.trees.select(index)

    def hypotheses(self, sentences: int) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first, the shorter of equals first."""
        result: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        for owners, *columns in self.finished:
            found = zip(owners, *(column.tolist() for column in columns), strict=True)
            for sentence, tokens, score, log_probability in found:
                result[sentence].append(Hypothesis(tokens, score, log_probability))
        if not all(result):
            raise ValueError("The model's logits are not numbers, so nothing can be decoded. Its training diverged.")
        return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in result]


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest of `scores` `(..., vocab)` and where they are, `(..., count)`, as `topk` gives them.

    What is among the greatest is in a group whose maximum is among the greatest maxima. So most of a vocabulary is read
    once, for a maximum, which on CPUs takes a quarter of the time that `topk` does.
    """
    groups = scores.size(-1) // GROUP
    if groups <= 2 * count:  # little would be left out
        values, places = scores.topk(count)
        return values, places
    rest = torch.arange(groups * GROUP, scores.size(-1), device=scores.device)
    best = scores[..., : groups * GROUP].unflatten(-1, (groups, GROUP)).amax(-1).topk(count).indices
    inside = best[..., None] * GROUP + torch.arange(GROUP, device=scores.device)
    places = torch.cat([inside.flatten(-2), rest.expand(*best.shape[:-1], -1)], dim=-1)
    values, chosen = scores.gather(-1, places).topk(count)
    return values, places.gather(-1, chosen)


def rows_of(live: np.ndarray) -> list[int]:
    """The rows where `live` `(rows,)` is True; those from the end fill the gaps, so that the others are not moved."""
    kept = live.sum()
    rows = np.arange(kept)
    rows[~live[:kept]] = live[kept:].nonzero()[0] + kept
    return rows.tolist()


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """`x` `(rows, beam, length)` at `index` `(rows, new beam)` of its second axis."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.size(2)))


def by_length(lengths: np.ndarray, *, tokens_per_batch: int, extra: int) -> Iterator[np.ndarray]:
    """Batches of sentences, longest first, so that a batch holds little padding.

    Args:
        lengths: Tokens of each source, with EOS, `(sentences,)`.
        tokens_per_batch: Positions that the targets of a batch may take up; a sentence that takes more goes alone.
        extra: Tokens that a target may have more than its source.

    Yields:
        Indices of the sentences of a batch, the longest first.

    Raises:
        ValueError: if no batch could hold a token.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"inference.tokens_per_batch must be at least 1, got {tokens_per_batch}.")
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        count = max(1, tokens_per_batch // int(lengths[order[0]] + extra))
        yield order[:count]
        order = order[count:]


def batches(
    model: Model, sources: Sequence[np.ndarray], *, tokens_per_batch: int, extra: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Encoded sentences as a model reads them, which is in evaluation mode meanwhile.

    Args:
        model: On whatever device; left in the mode it was in.
        sources: Ids without BOS and EOS, `(source,)` each.
        tokens_per_batch: As in `by_length`.
        extra: As in `by_length`.

    Yields:
        Which sentences these are, `(batch,)`, and their tokens, `(batch, source)`, each with EOS, padded.
    """
    lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)  # EOS is added
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    for indices in by_length(lengths, tokens_per_batch=tokens_per_batch, extra=extra):
        source = np.full((len(indices), lengths[indices[0]]), model.pad_id, dtype=np.int64)
        for row, index in enumerate(indices):
            source[row, : lengths[index] - 1] = sources[index]
            source[row, lengths[index] - 1] = EOS
        yield indices, torch.from_numpy(source).to(device)
    model.train(training)


def decode(
    model: Model,
    sources: Sequence[np.ndarray],
    *,
    beam: int = 4,
    alpha: float = 0.6,
    beta: float = 5.0,
    max_extra_length: int = 50,
    tokens_per_batch: int = 4096,
    n_best: int = 1,
    symbols: Symbols | None = None,
    progress: Callable[[int], None] = lambda sentences: None,
) -> list[list[Hypothesis]]:
    """Translate encoded sentences, in the order given; longest first, so that batches hold little padding.

    Args:
        model: On whatever device; searched in evaluation mode, left in the mode it was in.
        sources: Ids without BOS and EOS, `(source,)` each.
        beam: As in `search`.
        alpha: As in `search`.
        beta: As in `search`.
        max_extra_length: As in `search`.
        tokens_per_batch: Positions that the targets of a batch may take up, for one beam, were all of the greatest
            length; bounds memory. A sentence that takes more goes alone.
        n_best: As in `search`.
        symbols: As in `search`.
        progress: Called with the number of sentences of each batch that is done.

    Returns:
        For each sentence its best hypotheses, at least one and at most `n_best`, best first.

    Raises:
        ValueError: as `search` and `by_length`.
    """
    result: list[list[Hypothesis]] = [[]] * len(sources)
    for indices, source in batches(model, sources, tokens_per_batch=tokens_per_batch, extra=max_extra_length):
        found = search(
            model,
            source,
            beam=beam,
            alpha=alpha,
            beta=beta,
            max_extra_length=max_extra_length,
            n_best=n_best,
            symbols=symbols,
        )
        for index, hypotheses in zip(indices, found, strict=True):
            result[index] = hypotheses[:n_best]
        progress(len(indices))
    return result
