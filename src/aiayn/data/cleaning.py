"""Which training pairs are worth learning from. Dev and test are never cleaned.

The paper does not describe its cleaning; tensor2tensor, its code, drops empty sides and pairs above 256 subwords. The
others are the usual rules of later recipes. A pair is charged to the first rule that it breaks, in the order of
`RULES`; so the counts add up, and depend on the text and the settings only:

1. `empty`: a side is empty, or nothing but white space and invisible characters;
2. `held_out`: the source is a source of dev or test, or the target one of their targets (or the source alone is
   compared, where many sentences share a target, as they share the form of a tree);
3. `duplicate`: source and target both equal those of an earlier pair that passed 1 and 2;
4. `too_long`: a side has more than `max_length` tokens;
5. `ratio`: one side has more than `max_ratio` times the tokens of the other.

Rules 1 to 3 look at the text before anything is learnt from it: so the tokenizer never sees dev, test, or a pair twice.
They compare what a model would see of it: the text as the tokenizer normalises it, in which other white space and
invisible characters make no other sentence. Rules 4 and 5 count tokens, EOS left out.
"""

import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

RULES = ("empty", "held_out", "duplicate", "too_long", "ratio")
Sides: TypeAlias = tuple[Collection[str], Collection[str]]  # sources and targets
KEPT, EMPTY, HELD_OUT, DUPLICATE, TOO_LONG, RATIO = range(len(RULES) + 1)  # a verdict, uint8


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """The rules' limits.

    Attributes:
        max_length: Most tokens on a side; None for no limit.
        max_ratio: Most tokens of the longer side for one of the shorter; None for no limit.
        held_out: Whether dev's and test's sentences are removed from train; "source": those of the source side alone.
        duplicates: Whether repeated pairs are removed.
    """

    max_length: int | None = 250
    max_ratio: float | None = 4.0
    held_out: bool | str = True
    duplicates: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.held_out, bool) and self.held_out != "source":
            raise ValueError(f"data.cleaning.held_out must be true, false or source, got {self.held_out}.")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"data.cleaning.max_length must be at least 1 (or null), got {self.max_length}.")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ValueError(f"data.cleaning.max_ratio must be at least 1 (or null), got {self.max_ratio}.")

    def compared(self, held_out: Sides) -> Sides:
        """Of the sentences of dev and test those that train's are compared with."""
        sources, targets = held_out
        return sources if self.held_out else (), targets if self.held_out is True else ()

    def judge_text(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        held_out: Sides,
    ) -> np.ndarray:
        """Apply the rules that look at one pair's text.

        Args:
            sources: Normalised sentences, one a pair.
            targets: Their translations, normalised.
            held_out: Normalised sources and targets of dev and test; sets, for speed.

        Returns:
            Verdicts, `(pairs,)`: KEPT, EMPTY or HELD_OUT.
        """
        verdicts = np.full(len(sources), KEPT, dtype=np.uint8)
        seen_sources, seen_targets = self.compared(held_out)
        if seen_sources or seen_targets:
            known = [s in seen_sources or t in seen_targets for s, t in zip(sources, targets, strict=True)]
            verdicts[known] = HELD_OUT
        verdicts[[not (s and t) for s, t in zip(sources, targets, strict=True)]] = EMPTY
        return verdicts

    def judge_repetition(self, verdicts: np.ndarray, hashes: np.ndarray) -> None:
        """Mark, in place, every pair that passed so far and whose hash an earlier one of those has.

        Args:
            verdicts: Of the whole corpus, `(pairs,)`.
            hashes: 64 bits a pair, `(pairs,)`. At 36 million pairs the chance that any two different pairs share one
                is 4 in 100,000. Some 80 bytes a pair are in use for a moment.
        """
        if not self.duplicates:
            return
        rows = np.flatnonzero(verdicts == KEPT)
        _, first = np.unique(hashes[rows], return_index=True)
        verdicts[rows] = DUPLICATE
        verdicts[rows[first]] = KEPT

    def judge_lengths(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Apply the rules that count tokens.

        Args:
            source_lengths: Tokens without EOS, `(pairs,)`.
            target_lengths: Likewise.

        Returns:
            Verdicts, `(pairs,)`: KEPT, TOO_LONG or RATIO.
        """
        longer, shorter = np.maximum(source_lengths, target_lengths), np.minimum(source_lengths, target_lengths)
        verdicts = np.full(len(longer), KEPT, dtype=np.uint8)
        if self.max_ratio is not None:
            verdicts[longer > self.max_ratio * shorter] = RATIO
        if self.max_length is not None:
            verdicts[longer > self.max_length] = TOO_LONG
        return verdicts


class NearDuplicates:
    """Knows sentences again that differ in case, punctuation and spaces only; with another number it is another.

    Args:
        sentences: To be known; one that is all punctuation never is.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self._bare = {bare for sentence in sentences if (bare := self._bared(sentence))}
        # Where all that is left is equal, that of ASCII is, and this is found in a quarter of the time.
        self._ascii = {_ascii(bare) for bare in self._bare}

    def __contains__(self, sentence: str) -> bool:
        return _ascii(sentence) in self._ascii and self._bared(sentence) in self._bare

    @staticmethod
    def _bared(sentence: str) -> str:
        return sentence.lower().translate(_dropped())


@cache
def _dropped() -> dict[int, None]:
    """Punctuation and white space, as `str.translate` takes it."""
    characters = map(chr, range(sys.maxunicode))
    return {ord(c): None for c in characters if unicodedata.category(c)[0] in "PZ" or c.isspace()}


def _ascii(sentence: str) -> bytes:
    return sentence.lower().encode().translate(None, NEITHER_LETTER_NOR_DIGIT)


NEITHER_LETTER_NOR_DIGIT = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz0123456789"))


def pair_hashes(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Hash pairs with Python's own 64-bit hash (SipHash): good within one process, which is all that is asked of it."""
    return np.fromiter(map(hash, zip(sources, targets, strict=True)), dtype=np.int64, count=len(sources))


def removed_by_rule(verdicts: np.ndarray) -> dict[str, int]:
    """Count the pairs that each rule removed."""
    counts = np.bincount(verdicts, minlength=len(RULES) + 1)
    return {rule: int(count) for rule, count in zip(RULES, counts[1:], strict=True)}
