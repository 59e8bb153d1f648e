"""A prepared corpus: clean, train tokenizers or take given ones, encode; found again by the hash of its inputs.

On disk a corpus is a folder with `train.source.tokens.npy` (the sentences end to end, without special symbols) and
`train.source.offsets.npy` (where each begins) for every split and side, dev's and test's text, `tokenizer.model` (and
`target_tokenizer.model`, where the sides share none), `statistics.json`, and `near_held_out.tsv` (training pairs that
are nearly in dev or test). The training pairs of a mixture's corpora follow each other in the files of train. It
appears under its name when it is complete, never before.
"""

import contextlib
import errno
import fcntl
import hashlib
import inspect
import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from aiayn.data.builder import NEAR, SIDES, Builder, write
from aiayn.data.cleaning import Cleaning
from aiayn.data.mixture import MAIN, Mixture
from aiayn.data.parallel_text import ParallelText, WithSymbols
from aiayn.data.ragged import EncodedPairs, Ragged
from aiayn.data.tokenizer import NAMES, Tokenizer, Vocabularies, VocabularySizeError
from aiayn.files import digest

logger = logging.getLogger(__name__)

FORMAT = 2  # of a corpus folder; with a new one every corpus is prepared anew


class Corpus:
    """A prepared corpus, opened by `Corpus.open` or `prepare`.

    Attributes:
        path: Its folder.
        vocabularies: The tokenizers that encoded it.
        statistics: Pairs read, removed by each rule, and kept; those kept that are nearly in dev or test; tokens by
            side; sizes of the vocabularies; seconds by stage; pairs by split. Of a mixture these are sums, and
            `corpora` has the counts of each, by its key.
    """

    def __init__(self, path: Path, *, vocabularies: Vocabularies, statistics: dict[str, Any]) -> None:
        self.path, self.vocabularies, self.statistics = path, vocabularies, statistics

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder that `prepare` made."""
        try:
            statistics = json.loads((path / "statistics.json").read_text(encoding="utf-8"))
            names = NAMES if "source_vocab_size" in statistics else NAMES[:1]
            vocabularies = Vocabularies.of({name: (path / f"{name}.model").read_bytes() for name in names})
            corpus = cls(path, vocabularies=vocabularies, statistics=statistics)
            damaged = [split for split, pairs in statistics["splits"].items() if len(corpus.pairs(split)) != pairs]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is not a complete corpus; delete it and run again. ({error})") from error
        if damaged:
            raise ValueError(f"{path} is damaged in {damaged}; delete it and run again.")
        return corpus

    def splits(self) -> list[str]:
        return list(self.statistics["splits"])

    def pairs(self, split: str) -> EncodedPairs:
        """Encoded pairs of a split, mapped from disk. Dev and test have a row for every line of the text."""
        return EncodedPairs(*(Ragged.open(self.path / f"{split}.{side}") for side in SIDES))

    def mixture(self, weights: Mapping[str, float]) -> Mixture:
        """How often an epoch has each training pair, where `weights` says it of the pairs of a corpus, by its key."""
        corpora = self.statistics.get("corpora", {MAIN: self.statistics})
        return Mixture([one["kept"] for one in corpora.values()], [weights[key] for key in corpora])

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """Sources and targets of dev or test as they were read; the text of train is not kept."""
        files = (self.path / f"{split}.{side}.txt" for side in SIDES)
        sources, targets = (file.read_bytes().decode().split("\n")[:-1] for file in files)
        return sources, targets


def prepare(
    text: ParallelText,
    *,
    folder: Path,
    mixture: Mapping[str, ParallelText] | None = None,
    vocab_size: int,
    character_coverage: float,
    tokenizer_sample: int,
    cleaning: Cleaning,
    workers: int,
    byte_fallback: bool = False,
    shared_vocabulary: bool = True,
    vocabularies: Vocabularies | None = None,
) -> Corpus:
    """Find the corpus of this text and these settings, or build it.

    Any number of processes may ask for the same corpus at once: one builds it, the others wait for it. A process that
    dies leaves a `.partial` folder behind, which is never taken for a corpus and which the next builder removes.

    Args:
        text: Where the sentences come from.
        folder: Holds the prepared corpora, one subfolder each.
        mixture: Whose training pairs follow those of `text`, by their keys in the config. The vocabulary is learnt from
            all, each pair counting once. So it is the same for all weights, which nothing here knows.
        vocab_size: Ids of the vocabulary, or of each; fewer, with a warning, where the text has no so many pieces.
        character_coverage: Share of the text's characters that get ids of their own.
        tokenizer_sample: Most sentences, both sides together, to train the tokenizers on; bounds their memory.
        cleaning: Rules for the training pairs.
        workers: Threads that encode; 0 encodes in the calling one.
        byte_fallback: Whether characters without an id of their own are spelled in bytes.
        shared_vocabulary: Whether both sides have one tokenizer, or each its own.
        vocabularies: To take instead of trained ones; the five settings of the training then do not count.
    """
    fingerprint = text.fingerprint()  # a file that is named and not there is said first
    _check(text, tokenizer_sample=tokenizer_sample, workers=workers)
    settings: dict[str, Any] = {"text": fingerprint, "cleaning": asdict(cleaning), **_own_code(text)}
    if mixture:
        settings["mixture"] = {key: _mixed(other, key, text, fingerprint) for key, other in mixture.items()}
    if vocabularies is None:
        settings["vocab_size"] = vocab_size
        settings |= {"character_coverage": character_coverage, "tokenizer_sample": tokenizer_sample}
        # Named where they are not as in corpora that are older than they.
        settings |= {"byte_fallback": True} if byte_fallback else {}
        settings |= {} if shared_vocabulary else {"shared_vocabulary": False}
    else:
        settings["tokenizer"] = vocabularies.hash
    key = hashlib.sha256(json.dumps({"format": FORMAT, **settings}, sort_keys=True).encode()).hexdigest()[:16]
    path = folder.absolute() / key
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():  # else another process built it while this one waited
                _remove_abandoned(folder)
                symbols = _symbols([text, *(mixture or {}).values()], vocabularies)
                with _appearing(path) as temporary:
                    builder = Builder({MAIN: text, **(mixture or {})}, temporary, cleaning=cleaning, workers=workers)
                    train = partial(
                        _learnt,
                        shared=shared_vocabulary,
                        vocab_size=vocab_size,
                        character_coverage=character_coverage,
                        byte_fallback=byte_fallback,
                        symbols=symbols,
                    )
                    statistics = builder.build(train, sample=tokenizer_sample, vocabularies=vocabularies)
                    write(temporary / "statistics.json", json.dumps(statistics | {"settings": settings}, indent=2))
                if near := statistics["near_held_out"]:
                    logger.warning(
                        "cleaning: %d of the pairs kept have a side that differs from one of %s in case and "
                        "punctuation only, so scores there may flatter; %s lists them, to be taken out of the text",
                        near,
                        " or ".join(split for split in text.splits() if split != "train"),
                        path / NEAR,
                    )
    logger.info("corpus: %s", path)
    return Corpus.open(path)


def _check(text: ParallelText, *, tokenizer_sample: int, workers: int) -> None:
    """Refuse with a ValueError a text without train or dev, and settings that make no sense."""
    for split in ("train", "dev"):
        if split not in text.splits():
            there = ", ".join(text.splits()) or "no split"
            raise ValueError(
                f"data.{split} is missing: the corpus has {there}. With data=text give data.{split}.source and "
                f"data.{split}.target, files of a sentence a line."
            )
    if tokenizer_sample < 2:
        raise ValueError(f"data.tokenizer_sample must be at least 2 sentences, got {tokenizer_sample}.")
    if workers < 0:
        raise ValueError(f"data.prepare_workers must be 0 or more, got {workers}.")


def _mixed(text: ParallelText, key: str, main: ParallelText, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a corpus of a mixture from others.

    Raises:
        ValueError: if its text cannot be read, or is that of the main corpus, whose `fingerprint` is given.
    """
    try:
        found = text.fingerprint()
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    held_out = {*text.splits(), *main.splits()} - {"train"}  # which some corpora have in their fingerprints
    mine, theirs = ({name: of[name] for name in of if name not in held_out} for of in (found, fingerprint))
    if type(text) is type(main) and mine == theirs:
        raise ValueError(f"{key} is {MAIN} again, which every epoch has once; leave it out, or name other text.")
    return {"text": found, **_own_code(text)}


def _own_code(text: ParallelText) -> dict[str, Any]:
    """What else than its fingerprint tells a corpus of one's own from others: its class, and the code of its module."""
    kind = type(text)
    if kind.__module__.startswith("aiayn."):
        return {}
    with contextlib.suppress(OSError, TypeError):  # typed at a prompt
        return {"code": [kind.__qualname__, digest(Path(inspect.getfile(kind)))]}
    return {"code": [kind.__qualname__]}


def _symbols(texts: Sequence[ParallelText], given: Vocabularies | None) -> list[str]:
    """Words of the target side that get one id each, in the order in which they come.

    Raises:
        ValueError: if a given vocabulary has not all of them.
    """
    found = list(dict.fromkeys(one for text in texts if isinstance(text, WithSymbols) for one in text.symbols()))
    if given is not None and (lacking := [one for one in found if one not in given.target.symbols]):
        raise ValueError(
            f"data.tokenizer has no piece of its own for {len(lacking)} of the {len(found)} symbols of these trees, "
            f"{lacking[0]} for one; name a parser's that was trained on such trees, or leave it out."
        )
    return found


def _learnt(
    sentences: Callable[[Collection[str]], Iterable[str]],
    *,
    shared: bool,
    vocab_size: int,
    symbols: Sequence[str],
    **settings: Any,
) -> Vocabularies:
    """Train a tokenizer for both sides, or one for each.

    Args:
        sentences: Gives those of some sides.
        shared: Whether it is one for both.
        vocab_size: Of each tokenizer.
        symbols: Words of the target side that get one id each.
        settings: Further ones of `Tokenizer.train`.
    """
    if shared:
        settings["symbols"] = symbols
        return Vocabularies.joint(_largest_tokenizer(partial(sentences, SIDES), "text", vocab_size, settings))
    tokenizers = []
    for side in SIDES:
        try:
            own = {**settings, "symbols": symbols if side == "target" else []}
            tokenizers.append(_largest_tokenizer(partial(sentences, [side]), f"{side} text", vocab_size, own))
        except ValueError as error:
            raise ValueError(f"The {side} side, with data.shared_vocabulary=false: {error}") from error
    return Vocabularies(*tokenizers)


def _largest_tokenizer(
    sentences: Callable[[], Iterable[str]], what: str, vocab_size: int, settings: dict[str, Any]
) -> Tokenizer:
    """Train a tokenizer of `vocab_size` ids, or of as many as the text allows: SentencePiece says how many they are."""
    try:
        return Tokenizer.train(sentences(), vocab_size=vocab_size, **settings)
    except VocabularySizeError as error:
        logger.warning("data.vocab_size=%d is more than the %s allows: it is %d", vocab_size, what, error.largest)
        return Tokenizer.train(sentences(), vocab_size=error.largest, **settings)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock that the system releases when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            logger.info("another process is preparing %s; waiting for it", path.stem)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_abandoned(folder: Path) -> None:
    """Remove what builders that died left behind; the lock of a living one is taken."""
    for partial_folder in folder.glob("*.partial"):
        with contextlib.suppress(BlockingIOError), _locked(partial_folder.with_suffix(".lock"), wait=False):
            shutil.rmtree(partial_folder)


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A temporary sibling to write in, renamed to `path` after the last write and removed after an error."""
    temporary = path.with_suffix(".partial")
    shutil.rmtree(temporary, ignore_errors=True)  # of a builder that died
    try:
        temporary.mkdir()
        yield temporary
        temporary.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"The disk is full: {path} could not be written. Make room, or prepare on another disk."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
