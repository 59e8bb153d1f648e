"""Sentences in, sentences out: what dev BLEU, evaluation, translation and the service all call."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from aiayn.data.tokenizer import Tokenizer
from aiayn.inference import ctranslate2_decoder, ensemble, export
from aiayn.inference.beam_search import Hypothesis, decode, length_penalty
from aiayn.inference.checkpoint import Checkpoint, is_exported, read
from aiayn.inference.ctranslate2_decoder import Exported
from aiayn.inference.ensemble import Ensemble
from aiayn.model.transformer import Transformer
from aiayn.progress import progress

log = logging.getLogger(__name__)


class Decode(Protocol):
    """Encoded sentences in, their hypotheses out, best first; `beam_search.decode` with a model is one."""

    def __call__(
        self, sources: Sequence[np.ndarray], *, n_best: int, progress: Callable[[int], None]
    ) -> list[list[Hypothesis]]: ...


@dataclass(frozen=True)
class Translation:
    """A sentence's translation: `text`, the ids of its `tokens`, and how good the model finds it (`Hypothesis`).

    `pieces` is how many parts it was put together from, one unless the source was too long.
    """

    text: str
    tokens: list[int]
    score: float
    log_probability: float
    pieces: int = 1


def check_sentences(sentences: Sequence[str]) -> None:
    """Refuse what is no list of sentences.

    A line feed separates sentences here as in files, where it alone ends a line; at the end of one it says nothing.

    Raises:
        ValueError: if it is one string, or a sentence is of several lines, which the model would read as one.
    """
    if isinstance(sentences, str):
        raise ValueError("sentences must be a list of them, got one string; give [sentence].")
    for number, sentence in enumerate(sentences, 1):
        if "\n" in sentence.removesuffix("\n"):
            raise ValueError(f"sentence {number} has a line feed inside; give each line as a sentence of its own.")


class Translator:
    """Translate plain text.

    Args:
        tokenizer: The one that the model was trained with.
        decode: Searches for targets.
        alpha: Of the length penalty, for translations that are put together from pieces.
        max_source_length: Longer sources, in tokens, are cut into pieces that are translated one by one; None: never.
    """

    def __init__(
        self, tokenizer: Tokenizer, decode: Decode, *, alpha: float = 0.6, max_source_length: int | None = None
    ) -> None:
        if max_source_length is not None and max_source_length < 1:
            raise ValueError(f"max_source_length must be at least 1, got {max_source_length}.")
        self.tokenizer = tokenizer
        self.decode = decode
        self.alpha = alpha
        self.max_source_length = max_source_length

    def translate(self, sentences: Sequence[str], *, name: str = "", silent: bool = True) -> list[str]:
        """Translate sentences, in order; one without tokens, a blank line for one, becomes an empty one.

        Args:
            sentences: Plain text.
            name: Of the sentences, for the progress bar.
            silent: Show no progress.

        Raises:
            ValueError: as `check_sentences`.
        """
        return [found[0].text for found in self.n_best(sentences, 1, name=name, silent=silent)]

    def n_best(
        self, sentences: Sequence[str], n: int, *, name: str = "", silent: bool = True
    ) -> list[list[Translation]]:
        """The `n` best translations of each sentence, best first; fewer where the search found fewer.

        A sentence that is translated in pieces has one: the best of each piece, put together.

        Args:
            sentences: Plain text.
            n: At most the beam's width.
            name: Of the sentences, for the progress bar.
            silent: Show no progress.

        Raises:
            ValueError: as `check_sentences`.
        """
        check_sentences(sentences)
        pieces = [self._pieces(source) for source in self.tokenizer.encode(sentences)]
        if long := sum(len(sentence) > 1 for sentence in pieces):
            limit = f"more than {self.max_source_length} tokens"
            log.warning("%d of %d sentences have %s and are translated in pieces", long, len(pieces), limit)
        flat = [piece for sentence in pieces for piece in sentence]
        with progress(f"translating {name}".strip(), total=len(flat), silent=silent) as advance:
            decoded = iter(self.decode(flat, n_best=n, progress=advance))
        hypotheses = [self._joined([next(decoded) for _ in sentence]) for sentence in pieces]
        texts = iter(self.tokenizer.decode([found.tokens for sentence in hypotheses for found in sentence]))
        return [
            [Translation(next(texts), best.tokens, best.score, best.log_probability, len(parts)) for best in found]
            for found, parts in zip(hypotheses, pieces, strict=True)
        ]

    def _pieces(self, source: np.ndarray) -> list[np.ndarray]:
        """A source without tokens has none, a long one several, of nearly equal length."""
        return np.array_split(source, -(-len(source) // (self.max_source_length or len(source)))) if len(source) else []

    def _joined(self, pieces: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
        """The translations of a sentence from those of its pieces; of several the best of each, put together."""
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return [Hypothesis([], 0.0, 0.0)]
        parts = [hypotheses[0] for hypotheses in pieces]
        tokens = [token for part in parts for token in part.tokens]
        log_probability = sum(part.log_probability for part in parts)
        score = log_probability / length_penalty(len(tokens) + len(parts), self.alpha).item()
        return [Hypothesis(tokens, score, log_probability)]


def translator(
    model: Transformer | Ensemble | Exported,
    tokenizer: Tokenizer,
    *,
    beam: int,
    alpha: float,
    max_extra_length: int,
    tokens_per_batch: int,
    max_source_length: int | None = None,
) -> Translator:
    """A `Translator` that searches with a model, on whatever device it is; beam to tokens_per_batch are `inference`."""
    settings: dict[str, Any] = {"beam": beam, "alpha": alpha, "max_extra_length": max_extra_length}
    of_its_kind: Any = ctranslate2_decoder.decode if isinstance(model, Exported) else decode
    search = partial(of_its_kind, model, **settings, tokens_per_batch=tokens_per_batch)
    limits = [max_source_length, None if model.longest is None else model.longest - 1]  # EOS is added
    limit = min((limit for limit in limits if limit is not None), default=None)
    return Translator(tokenizer, search, alpha=alpha, max_source_length=limit)


def load(*paths: str | Path, backend: str | None = None, accelerator: str = "auto", **inference: Any) -> Translator:
    """What `aiayn.load` calls; its arguments and errors are said there."""
    loaded, model = open_with(backend, [Path(path) for path in paths], accelerator=accelerator)
    return translator(model, loaded.tokenizer, **{**loaded.config["inference"], **inference})


def open_with(
    backend: str | None, paths: Sequence[Path], *, accelerator: str
) -> tuple[Checkpoint | Exported, Transformer | Ensemble | Exported]:
    """Tokenizer and config, and the model that `translator` takes; arguments and errors are those of `aiayn.load`."""
    exported = len(paths) == 1 and is_exported(paths[0], kind="ctranslate2")
    backend = backend or ("ctranslate2" if exported else "torch")
    if backend == "torch":
        return ensemble.load(paths, accelerator=accelerator)
    if backend != "ctranslate2":
        raise ValueError(f"backend must be torch or ctranslate2, got {backend}.")
    if len(paths) != 1:
        raise ValueError(f"backend=ctranslate2 takes one checkpoint, got {len(paths)}; it knows no ensembles.")
    if exported:
        model = ctranslate2_decoder.load(paths[0])
    else:
        loaded = read(paths[0])
        try:
            with TemporaryDirectory() as folder:
                export.write_ctranslate2(loaded, Path(folder))
                model = ctranslate2_decoder.load(Path(folder))
        except OSError as error:
            raise OSError(
                f"backend=ctranslate2 exports {paths[0]} to the system's temporary folder: {error}; make room there, "
                f"name another by TMPDIR, or export it by task=export and name what that writes."
            ) from error
    return model, model
