"""The stages that build a corpus: judge the pairs, train the tokenizers, encode.

The training text is read three times, since 36 million pairs of strings would not fit in memory and reading is cheap
beside encoding: to judge the pairs by their text, to train the tokenizers on a sample of those that passed, and to
encode. (Four times where each side has a tokenizer of its own.) Encoding runs in threads: SentencePiece lets go of
Python's global lock, so two threads encode as fast as two processes, with nothing to send between them and nothing left
running when one is killed. Chunks come back in order, so the number of workers does not change the result.
"""

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aiayn.data.cleaning import KEPT, Cleaning, NearDuplicates, pair_hashes, removed_by_rule
from aiayn.data.mixture import MAIN
from aiayn.data.parallel_text import ParallelText
from aiayn.data.ragged import Ragged, RaggedWriter, encode_pairs, to_disk
from aiayn.data.tokenizer import Normaliser, Vocabularies
from aiayn.progress import progress

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
NEAR = "near_held_out.tsv"  # kept pairs that are nearly in dev or test, a tab between the sides
CHUNK = 4096  # pairs handed to a thread at a time, about 0.15 s of encoding

Chunk = tuple[list[str], list[str]]  # sources, targets
Item = TypeVar("Item")
Result = TypeVar("Result")


class Builder:
    """The stages of one build; each writes into `folder` and leaves its seconds in `seconds`.

    Args:
        texts: By the keys of a config; training pairs come from all, what is held out from the first.
        folder: To write in.
        cleaning: Rules for the training pairs.
        workers: Threads that encode.
    """

    def __init__(self, texts: Mapping[str, ParallelText], folder: Path, *, cleaning: Cleaning, workers: int) -> None:
        self.texts, self.folder, self.cleaning, self.workers = texts, folder, cleaning, workers
        self.seconds: dict[str, float] = {}

    def build(
        self,
        train: Callable[[Callable[[Collection[str]], Iterable[str]]], Vocabularies],
        *,
        sample: int,
        vocabularies: Vocabularies | None = None,
    ) -> dict[str, Any]:
        """Run all stages; returns the statistics.

        Args:
            train: Makes the tokenizers; it calls what it is given for the sentences of some sides, once or again.
            sample: How many sentences of both sides those are at most.
            vocabularies: To take instead of trained ones.
        """
        main = next(iter(self.texts.values()))
        held_out = {split: _whole(main, split) for split in main.splits() if split != "train"}
        with self.stage("judge"):
            verdicts = self.judge_texts(held_out, _normalisers(vocabularies))
        if vocabularies is None:
            with self.stage("tokenizer"):
                vocabularies = train(partial(self.sample, verdicts, pairs=sample // 2))
        with self.stage("encode"):
            self.write_held_out(held_out, vocabularies)
            encoded = self.encode(vocabularies, verdicts, held_out)
        for name, model in vocabularies.models.items():
            write(self.folder / f"{name}.model", model)
        corpora = {}
        for key, verdict in verdicts.items():
            kept, removed = _counts(verdict, key)
            of = f"{key}: " if len(self.texts) > 1 else ""
            logger.info("cleaning: %s%d pairs read, %d kept, removed: %s", of, len(verdict), kept, in_words(removed))
            corpora[key] = {"pairs_read": len(verdict), "removed": removed, "kept": kept, **encoded[key]}
        together = _sum(list(corpora.values()))
        return {
            **together,
            **vocabularies.sizes,
            "splits": {"train": together["kept"], **{split: len(of) for split, (of, _) in held_out.items()}},
            **({"corpora": corpora} if len(self.texts) > 1 else {}),
            "seconds": self.seconds,
        }

    def judge_texts(
        self, held_out: dict[str, Chunk], normalisers: tuple[Normaliser, Normaliser]
    ) -> dict[str, np.ndarray]:
        """Apply the rules that need no tokens; verdicts, `(pairs,)`, of each text."""
        seen_sources, seen_targets = (
            set(normalised([sentence.strip() for sentence in side]))
            for normalised, side in zip(normalisers, _sides(held_out), strict=True)
        )
        found = {}
        for key, text in self.texts.items():
            verdicts, hashes = [np.empty(0, np.uint8)], [np.empty(0, np.int64)]
            for chunk in _watched(_chunks(text), "judge"):
                sources, targets = (normalised(side) for normalised, side in zip(normalisers, chunk, strict=True))
                verdicts.append(self.cleaning.judge_text(sources, targets, held_out=(seen_sources, seen_targets)))
                hashes.append(pair_hashes(sources, targets))
            found[key] = np.concatenate(verdicts)
            self.cleaning.judge_repetition(found[key], np.concatenate(hashes))
            _counts(found[key], key)
        return found

    def sample(self, verdicts: Mapping[str, np.ndarray], sides: Collection[str], *, pairs: int) -> Iterator[str]:
        """Sentences of some sides of a uniform sample of the pairs that passed; it depends on the texts alone."""
        chosen = np.concatenate([verdict == KEPT for verdict in verdicts.values()])
        rows = np.flatnonzero(chosen)
        if len(rows) > pairs:
            chosen[:] = False
            chosen[np.random.default_rng(1).choice(rows, pairs, replace=False)] = True
        ends = np.cumsum([len(verdict) for verdict in verdicts.values()])
        for key, marks in zip(verdicts, np.split(chosen, ends[:-1]), strict=True):
            for chunk in self.selected(key, marks, "tokenizer"):
                for side, sentences in zip(SIDES, chunk, strict=True):
                    if side in sides:
                        yield from sentences

    def encode(
        self, vocabularies: Vocabularies, verdicts: Mapping[str, np.ndarray], held_out: dict[str, Chunk]
    ) -> dict[str, dict[str, Any]]:
        """Write the training pairs that passed, and those that nearly are in dev or test; enter the rules by tokens.

        Returns:
            Of each text the `tokens` by side, and how many of the pairs that are kept nearly are in dev or test, on
            either side, as `near_held_out`.
        """
        known = [NearDuplicates(side) for side in self.cleaning.compared(_sides(held_out))]
        encode = partial(_encode, vocabularies, self.cleaning, known)
        found = {}
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(self.writer("train", side, vocabularies)) for side in SIDES]
            listed = stack.enter_context((self.folder / NEAR).open("w", encoding="utf-8"))
            stack.callback(to_disk, listed)
            for key, passed in verdicts.items():
                chunks = self.selected(key, passed == KEPT, "encode")
                judged, tokens, near = [], dict.fromkeys(SIDES, 0), 0
                for verdict, alike, *encoded in _in_order(encode, chunks, workers=self.workers):
                    judged.append(verdict)
                    near += len(alike)
                    listed.writelines(f"{source}\t{target}\n" for source, target in alike)
                    for side, writer, ragged in zip(SIDES, writers, encoded, strict=True):
                        writer.append(ragged)
                        tokens[side] += len(ragged.tokens)
                passed[passed == KEPT] = np.concatenate(judged)
                found[key] = {"near_held_out": near, "tokens": tokens}
        return found

    def write_held_out(self, held_out: dict[str, Chunk], vocabularies: Vocabularies) -> None:
        """Write dev and test line for line, as text and encoded."""
        for split, texts in held_out.items():
            encoded = encode_pairs(vocabularies, *texts)
            for side, sentences, ragged in zip(SIDES, texts, (encoded.source, encoded.target), strict=True):
                write(self.folder / f"{split}.{side}.txt", "".join(f"{sentence}\n" for sentence in sentences))
                with self.writer(split, side, vocabularies) as writer:
                    writer.append(ragged)

    def writer(self, split: str, side: str, vocabularies: Vocabularies) -> RaggedWriter:
        return RaggedWriter(self.folder / f"{split}.{side}", vocab_size=getattr(vocabularies, side).vocab_size)

    def selected(self, key: str, chosen: np.ndarray, stage: str) -> Iterator[Chunk]:
        """The chosen training pairs of a text, `chosen` being boolean, `(pairs,)`."""
        start = 0
        for chunk in _watched(_chunks(self.texts[key]), stage, total=len(chosen)):
            marks = chosen[start : start + len(chunk[0])].tolist()
            start += len(chunk[0])
            sources, targets = (list(itertools.compress(sentences, marks)) for sentences in chunk)
            if sources:
                yield sources, targets
        if start != len(chosen):
            raise ValueError(f"The training text changed while it was read: {len(chosen)} pairs, then {start}.")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        logger.info("%s: %.1f s", name, self.seconds[name])


def _encode(
    vocabularies: Vocabularies, cleaning: Cleaning, known: list[NearDuplicates], chunk: Chunk
) -> tuple[np.ndarray, list[tuple[str, str]], Ragged, Ragged]:
    """Encode a chunk: verdicts; of the pairs that no rule removes the near duplicates, sources, and targets."""
    encoded = encode_pairs(vocabularies, *chunk)
    verdicts = cleaning.judge_lengths(encoded.source.lengths, encoded.target.lengths)
    keep = verdicts == KEPT
    pairs = itertools.compress(zip(*chunk, strict=True), keep.tolist())
    near = [pair for pair in pairs if pair[0] in known[0] or pair[1] in known[1]]
    return verdicts, near, encoded.source.select(keep), encoded.target.select(keep)


def _normalisers(vocabularies: Vocabularies | None) -> tuple[Normaliser, Normaliser]:
    """What the tokenizers of source and target see of sentences, those that are given or any trained here."""
    if vocabularies is None:
        return Normaliser(), Normaliser()
    return Normaliser(vocabularies.source.model), Normaliser(vocabularies.target.model)


def _sides(held_out: dict[str, Chunk]) -> tuple[list[str], list[str]]:
    """All sources and all targets of dev and test."""
    sources, targets = ([sentence for texts in held_out.values() for sentence in texts[side]] for side in (0, 1))
    return sources, targets


def _read(text: ParallelText, split: str) -> Iterator[tuple[str, str]]:
    """The pairs of a split.

    Raises:
        ValueError: if a sentence holds a line feed, which would make two of it.
    """
    for number, pair in enumerate(text.pairs(split), 1):
        if "\n" in pair[0] or "\n" in pair[1]:
            raise ValueError(
                f"{type(text).__name__} gives a line feed inside pair {number} of {split}, {pair!r:.120}; a sentence "
                "is one line: replace it there, or split the pair."
            )
        yield pair


def _whole(text: ParallelText, split: str) -> Chunk:
    """All of a split that fits in memory."""
    pairs = list(_read(text, split))
    return [source for source, _ in pairs], [target for _, target in pairs]


def _chunks(text: ParallelText) -> Iterator[Chunk]:
    """The training text, stripped, so many pairs at a time."""
    pairs = _read(text, "train")
    while chunk := list(itertools.islice(pairs, CHUNK)):
        yield [source.strip() for source, _ in chunk], [target.strip() for _, target in chunk]


def _counts(verdicts: np.ndarray, key: str) -> tuple[int, dict[str, int]]:
    """Pairs kept, and removed by each rule; an error, with the text's key, when none is kept."""
    kept, removed = int(np.count_nonzero(verdicts == KEPT)), removed_by_rule(verdicts)
    if not kept:
        raise ValueError(
            f"No training pair is left of {len(verdicts)}, removed: {in_words(removed)}. Loosen data.cleaning or check "
            f"{'data.train' if key == MAIN else key}."
        )
    return kept, removed


def _sum(statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of counts with the same keys; what holds counts is added up likewise."""
    return {
        key: _sum([one[key] for one in statistics])
        if isinstance(value, Mapping)
        else sum(one[key] for one in statistics)
        for key, value in statistics[0].items()
    }


def in_words(removed: Mapping[str, int]) -> str:
    """Pairs that the rules removed, without those that removed none."""
    return ", ".join(f"{count} {rule.replace('_', ' ')}" for rule, count in removed.items() if count) or "none"


def _in_order(function: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[Result]:
    """Map in threads; results in the order of the items, of which only a few are held at a time."""
    if not workers:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        running = deque[Any]()
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _watched(chunks: Iterable[Chunk], stage: str, *, total: int | None = None) -> Iterator[Chunk]:
    """Pass chunks on and show how many pairs went by."""
    with progress(f"{stage}: pairs", total=total) as advance:
        for chunk in chunks:
            yield chunk
            advance(len(chunk[0]))


def write(path: Path, content: str | bytes) -> None:
    """Write a file, and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        to_disk(file)
