"""Decode with CTranslate2 what `export.py` has written: on CPUs, in float32, int8 and whatever else it knows.

Greedy search gives the tokens of `beam_search.decode`. A beam is searched by CTranslate2's own rules
(OpenNMT/CTranslate2:src/decoding.cc), which are others: a hypothesis that ends gives its place to another one, and,
without a length penalty of its own, the search for a sentence ends when at least `beam` hypotheses have ended and one
of them was the most probable of all when it did. Those are ranked here, by our length penalty.

CTranslate2 knows one greatest length for a batch, and ours follows from each source. So a hypothesis is cut where its
sentence's limit is, and EOS is put there, as our search does; a greedy one is then the same.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aiayn.checkpoints import checkpoint
from aiayn.data.tokenizer import Vocabularies
from aiayn.inference.beam_search import Hypothesis, by_length, check, length_penalty

if TYPE_CHECKING:  # of the extra `export`, which only those need who have exported
    import ctranslate2

LENGTHS = range(2, 10**6 + 1)  # positions that a model can have: for a token and EOS at least


@dataclass(frozen=True)
class Exported:
    """A model that CTranslate2 has loaded.

    Attributes:
        engine: searches and scores.
        vocabularies: those the model was trained with; their pieces are the engine's.
        config: the run's.
        longest: positions that the model can encode.
        step: optimizer steps behind it.
    """

    engine: "ctranslate2.Translator"
    vocabularies: Vocabularies
    config: dict[str, Any]
    longest: int
    step: int

    @cached_property
    def pieces(self) -> np.ndarray:
        """What each id of a source stands for, `(vocab,)`."""
        return np.array(self.vocabularies.source.vocabulary, dtype=object)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece of a target."""
        return {piece: token for token, piece in enumerate(self.vocabularies.target.vocabulary)}


def load(folder: Path) -> Exported:
    """Open a folder of `export.write_ctranslate2`; it computes in as many threads as torch does.

    Raises:
        ValueError: if it is none, or damaged.
    """
    import ctranslate2

    content = checkpoint.read_exported(folder, kind="ctranslate2")
    longest = content.get("longest")
    if type(longest) is not int or longest not in LENGTHS:  # True is an int, too
        raise ValueError(
            f"checkpoint {folder} was not written by aiayn: longest must be a whole number from {LENGTHS[0]} to "
            f"{LENGTHS[-1]}, got {longest}."
        )
    vocabularies = checkpoint.stored_vocabularies(content, folder)
    # As CTranslate2 names them.
    files = {"source_vocabulary.json": vocabularies.source, "target_vocabulary.json": vocabularies.target}
    if vocabularies.source.vocabulary == vocabularies.target.vocabulary:
        files = {"shared_vocabulary.json": vocabularies.source}
    try:
        engine = ctranslate2.Translator(str(folder), intra_threads=torch.get_num_threads())
        pieces = {name: json.loads((folder / name).read_text(encoding="utf-8")) for name in files}
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"checkpoint {folder} cannot be read by CTranslate2: {error}.") from error
    if wrong := [name for name, tokenizer in files.items() if pieces[name] != tokenizer.vocabulary]:
        raise ValueError(f"checkpoint {folder} is damaged: {wrong[0]} does not hold the pieces of its tokenizer.")
    return Exported(engine, vocabularies, content["config"], longest, content["global_step"])


def decode(
    model: Exported,
    sources: Sequence[np.ndarray],
    *,
    beam: int = 4,
    alpha: float = 0.6,
    beta: float = 5.0,
    max_extra_length: int = 50,
    tokens_per_batch: int = 4096,
    n_best: int = 1,
    progress: Callable[[int], None] = lambda sentences: None,
) -> list[list[Hypothesis]]:
    """Translate encoded sentences; arguments, result and errors are those of `beam_search.decode`.

    A source without tokens has an empty target. Log-probabilities are such that PAD, UNK and BOS have none.
    """
    check(beam=beam, alpha=alpha, beta=beta, max_extra_length=max_extra_length, n_best=n_best)
    lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)  # EOS is added
    limits = np.minimum(lengths + max_extra_length, model.longest)  # of the targets, with EOS
    result: list[list[Hypothesis]] = [[]] * len(sources)
    for indices in by_length(lengths, tokens_per_batch=tokens_per_batch, extra=max_extra_length):
        found = _search(model, [sources[index] for index in indices], limits[indices].tolist(), beam=beam)
        for index, hypotheses in zip(indices, found, strict=True):
            scored = [
                Hypothesis(tokens, total / length_penalty(len(tokens) + 1, alpha, beta).item(), total)
                for tokens, total in hypotheses
            ]
            result[index] = sorted(scored, key=lambda hypothesis: -hypothesis.score)[:n_best]
        progress(len(indices))
    return result


def _search(
    model: Exported, sources: Sequence[np.ndarray], limits: Sequence[int], *, beam: int
) -> list[list[tuple[list[int], float]]]:
    """Tokens and log-probability, with EOS, of each sentence's hypotheses, none longer than its limit."""
    read = [model.pieces[source].tolist() for source in sources]
    room = max(1, max(limits) - 1)  # for all tokens but EOS
    found = model.engine.translate_batch(
        read,
        beam_size=beam,
        num_hypotheses=beam,
        length_penalty=0,
        return_scores=True,
        max_input_length=0,
        min_decoding_length=0,
        max_decoding_length=room,
    )
    totals: list[dict[tuple[str, ...], float]] = [{} for _ in sources]
    cut = set()
    for row, (result, limit) in enumerate(zip(found, limits, strict=True)):
        for tokens, total in zip(result.hypotheses, result.scores, strict=True):
            if len(tokens) < min(limit, room):
                totals[row][tuple(tokens)] = total
            else:  # it goes beyond the limit, or up to it without EOS
                cut.add((row, tuple(tokens[: limit - 1])))
    if cut:
        rows, targets = zip(*sorted(cut), strict=True)
        scored = model.engine.score_batch([read[row] for row in rows], list(map(list, targets)), max_input_length=0)
        for row, target, score in zip(rows, targets, scored, strict=True):
            totals[row][target] = sum(score.log_probs)
    return [[([model.ids[piece] for piece in target], total) for target, total in row.items()] for row in totals]
