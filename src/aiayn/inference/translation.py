"""Sentences in, sentences out: what scores on dev, evaluation, translation and the service all call."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from aiayn.checkpoints.checkpoint import Checkpoint, is_exported, read
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.data.trees import ANY, tags_by_form, tree_of
from aiayn.inference import ctranslate2_decoder, ensemble, export, sampling
from aiayn.inference.beam_search import Hypothesis, decode, length_penalty
from aiayn.inference.ctranslate2_decoder import Exported
from aiayn.inference.well_formed import Symbols
from aiayn.model.model import Model
from aiayn.progress import progress

log = logging.getLogger(__name__)

WIDER = (2, 4, 8)  # times the beam, where a list would hold a text twice


class Decode(Protocol):
    """Encoded sentences in, their hypotheses out, best first; `beam_search.decode` with a model is one.

    Samples, of `sampling.decode`, are in the order drawn.
    """

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


def words_of(sentence: str) -> str:
    """A sentence as a parser reads it: a space between words, brackets as treebanks write them."""
    return " ".join(sentence.replace("(", "-LRB-").replace(")", "-RRB-").split())


class Translator:
    """Translate plain text.

    Args:
        vocabularies: Those that the model was trained with.
        decode: Searches for targets.
        alpha: Of the length penalty, for translations that are put together from pieces.
        beta: The same.
        max_source_length: Longer sources, in tokens, are cut into pieces that are translated one by one; None: never.
    """

    def __init__(
        self,
        vocabularies: Vocabularies,
        decode: Decode,
        *,
        alpha: float = 0.6,
        beta: float = 5.0,
        max_source_length: int | None = None,
    ) -> None:
        if max_source_length is not None and max_source_length < 1:
            raise ValueError(f"max_source_length must be at least 1, got {max_source_length}.")
        self.vocabularies = vocabularies
        self.decode = decode
        self.alpha, self.beta = alpha, beta
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

    def parse(self, sentences: Sequence[str], *, silent: bool = True) -> list[str]:
        """The constituency trees of sentences, in brackets, in order; of a blank one an empty text.

        Where the model has learned no tags they are XX, but of punctuation, whose form decides. What it writes is
        mended where it is no tree (`trees.tree_of`).

        Args:
            sentences: Words with white space between them; round brackets become -LRB- and -RRB-, as in treebanks.
            silent: Show no progress.

        Raises:
            ValueError: if the model was not trained on trees, or as `check_sentences`.
        """
        check_sentences(sentences)
        if not self.parses:
            raise ValueError("the model was trained on no trees, so it cannot parse; give a run of problem=parsing.")
        taken = [words_of(sentence) for sentence in sentences]
        decoded = self.translate(taken, silent=silent)
        return [self.tree(*pair) for pair in zip(taken, decoded, strict=True)]

    @property
    def parses(self) -> bool:
        """Whether the model was trained on trees, so that its translations are their symbols."""
        return bool(self.vocabularies.target.symbols)

    def tree(self, sentence: str, symbols: str) -> str:
        """The tree that symbols say over a sentence, as `words_of` gives it; of a blank one an empty text."""
        words, known = sentence.split(), ANY not in self.vocabularies.target.symbols
        return tree_of(symbols, words, None if known else tags_by_form(words))[0] if words else ""

    def n_best(
        self, sentences: Sequence[str], n: int, *, name: str = "", silent: bool = True
    ) -> list[list[Translation]]:
        """The `n` best translations of each sentence, best first, all of them different texts; or `n` samples.

        There are fewer where a search eight times as wide found fewer (`distinct`), which the log says. A sentence that
        is translated in pieces has one: the best of each piece, put together.

        Args:
            sentences: Plain text.
            n: At most the beam's width, where there is a beam.
            name: Of the sentences, for the progress bar.
            silent: Show no progress.

        Raises:
            ValueError: as `check_sentences`.
        """
        check_sentences(sentences)
        pieces = [self._pieces(source) for source in self.vocabularies.source.encode(sentences)]
        if long := sum(len(sentence) > 1 for sentence in pieces):
            limit = f"more than {self.max_source_length} tokens"
            log.warning("%d of %d sentences have %s and are translated in pieces", long, len(pieces), limit)
        flat = [piece for sentence in pieces for piece in sentence]
        with progress(f"translating {name}".strip(), total=len(flat), silent=silent) as advance:
            decoded = iter(self.decode(flat, n_best=n, progress=advance))
        hypotheses = [self._joined([next(decoded) for _ in sentence]) for sentence in pieces]
        texts = iter(self.vocabularies.target.decode([found.tokens for sentence in hypotheses for found in sentence]))
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
        score = log_probability / length_penalty(len(tokens) + len(parts), self.alpha, self.beta).item()
        return [Hypothesis(tokens, score, log_probability)]


def distinct(
    search: Callable[..., list[list[Hypothesis]]], tokenizer: Tokenizer, *, beam: int, tokens_per_batch: int
) -> Decode:
    """A search whose n-best lists hold no text twice.

    A text has several segmentations, and each is a hypothesis. The best of them stays. Where fewer than `n_best` are
    left, a wider search, two to eight times so, for more hypotheses adds what it finds of other texts. It adds none
    that scores higher than the best: the best translation is that of the beam that was asked for, whatever `n_best`.

    Args:
        search: `beam_search.decode` or another one with its arguments, with a model and the other settings.
        tokenizer: Of the model's target side.
        beam: Of the first search.
        tokens_per_batch: Of the first search; a wider one gets less, so that it needs no more memory.
    """

    def decode(
        sources: Sequence[np.ndarray], *, n_best: int, progress: Callable[[int], None]
    ) -> list[list[Hypothesis]]:
        budget = {"beam": beam, "tokens_per_batch": tokens_per_batch}
        result = search(sources, n_best=n_best, progress=progress, **budget)
        if n_best == 1:
            return result
        result = [different(found, tokenizer) for found in result]
        for factor in WIDER:
            short = [row for row, found in enumerate(result) if len(found) < n_best]
            wide = {"beam": factor * beam, "tokens_per_batch": max(1, tokens_per_batch // factor)}
            if not short or wide["beam"] > tokenizer.vocab_size:
                break
            again = search([sources[row] for row in short], n_best=factor * n_best, **wide)
            for row, found in zip(short, again, strict=True):
                best = result[row][0]
                both = [*result[row], *(each for each in found if each.score <= best.score)]
                both.sort(key=lambda hypothesis: -hypothesis.score)  # of equals the first stays before the second
                result[row] = different(both, tokenizer)[:n_best]
        if few := sum(len(found) < n_best for found in result):
            log.info("%d of %d sentences have fewer than %d different translations", few, len(sources), n_best)
        return result

    return decode


def different(hypotheses: Sequence[Hypothesis], tokenizer: Tokenizer) -> list[Hypothesis]:
    """Those whose text none before them has."""
    texts = tokenizer.decode([hypothesis.tokens for hypothesis in hypotheses])
    return [hypothesis for row, hypothesis in enumerate(hypotheses) if texts[row] not in texts[:row]]


def translator(
    model: Model | Exported,
    vocabularies: Vocabularies,
    *,
    beam: int,
    alpha: float,
    max_extra_length: int,
    tokens_per_batch: int,
    beta: float = 5.0,
    well_formed: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    max_source_length: int | None = None,
) -> Translator:
    """A `Translator` with a model, on whatever device it is; beam to seed are `inference`; older ones lack some.

    Without a temperature it searches with a beam, with one it draws samples.

    Raises:
        ValueError: if a setting means nothing, or the model is CTranslate2's and is to be sampled from.
    """
    search: Decode
    settings: dict[str, Any] = {"alpha": alpha, "beta": beta, "max_extra_length": max_extra_length}
    if temperature is None:
        if (top_k, top_p) != (None, None):
            raise ValueError(
                "inference.top_k and inference.top_p are of sampling; set inference.temperature too, as 1."
            )
        if isinstance(model, Exported) and well_formed:
            raise ValueError("inference.well_formed=true needs backend=torch; CTranslate2 knows no trees.")
        trees = {"symbols": Symbols(vocabularies)} if well_formed else {}
        of_its_kind: Any = ctranslate2_decoder.decode if isinstance(model, Exported) else decode
        beamed = partial(of_its_kind, model, **settings, **trees)
        search = distinct(beamed, vocabularies.target, beam=beam, tokens_per_batch=tokens_per_batch)
    elif isinstance(model, Exported):
        raise ValueError("samples are drawn with backend=torch; with CTranslate2 give inference=beam or greedy.")
    elif well_formed:
        raise ValueError(
            "inference.well_formed=true is of a search, and inference.temperature draws; leave one of them."
        )
    else:
        settings |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": 1 if seed is None else seed}
        sampling.check(**{key: settings[key] for key in ("temperature", "top_k", "top_p", "seed")}, n_best=1)
        search = partial(sampling.decode, model, **settings, tokens_per_batch=tokens_per_batch)
    limits = [max_source_length, None if model.longest is None else model.longest - 1]  # EOS is added
    limit = min((limit for limit in limits if limit is not None), default=None)
    return Translator(vocabularies, search, alpha=alpha, beta=beta, max_source_length=limit)


def load(
    *paths: str | Path,
    backend: str | None = None,
    accelerator: str = "auto",
    trust: Collection[str] = (),
    **inference: Any,
) -> Translator:
    """What `aiayn.load` calls; its arguments and errors are said there."""
    loaded, model = open_with(backend, [Path(path) for path in paths], accelerator=accelerator, trust=trust)
    search = {**loaded.config["inference"], **inference}
    if missing := [name for name in ("beam", "alpha", "max_extra_length", "tokens_per_batch") if name not in search]:
        raise ValueError(f"the checkpoint's config has no inference.{missing[0]}; give {missing[0]}=... to load.")
    return translator(model, loaded.vocabularies, **search)


def open_with(
    backend: str | None, paths: Sequence[Path], *, accelerator: str, trust: Collection[str] = ()
) -> tuple[Checkpoint | Exported, Model | Exported]:
    """Vocabularies and config, and the model that `translator` takes; all else is as for `aiayn.load`."""
    exported = len(paths) == 1 and is_exported(paths[0], kind="ctranslate2")
    backend = backend or ("ctranslate2" if exported else "torch")
    if backend == "torch":
        return ensemble.load(paths, accelerator=accelerator, trust=trust)
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
                export.write_ctranslate2(loaded, Path(folder), trust=trust)
                model = ctranslate2_decoder.load(Path(folder))
        except OSError as error:
            raise OSError(
                f"backend=ctranslate2 exports {paths[0]} to the system's temporary folder: {error}; make room there, "
                f"name another by TMPDIR, or export it by task=export and name what that writes."
            ) from error
    return model, model
