"""BLEU on text cut by the Moses tokenizer, as `multi-bleu.perl` counts it and papers before sacreBLEU report it.

Moses's tokenizer is sacremoses, a port of its Perl script. It was held against version 1.1 of the script, as the
package mosestokenizer 1.2.1 has it, on Multi30k, newstest2008 to 2013 and newstest2017. The tokens are the same in all
53,595 German lines, in all but 1 of 47,587 French and all but 32 of 47,587 English ones: a later rule for .' at the end
of a line (30), and the lists of abbreviations ("Inc", French "a"). Today's script cuts the full stop from every last
word, from "usw." and "L.A." too, which sacremoses does not: 88 of the German lines differ, 19 of them among the 6,008
of newstest2017, where it makes 0.01 BLEU. The script's own rules for Finnish, Swedish, Catalan, Irish, Somali and Tetun
are not in sacremoses.
"""

import logging
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

import numpy as np
from sacrebleu.metrics import BLEU
from sacremoses import MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from aiayn.evaluation.metric import CountedBySacreBleu, LanguageError
from aiayn.evaluation.metrics.bleu import RULE_13A, bleu, tokenizer_of

log = logging.getLogger(__name__)


class BleuTokenized(CountedBySacreBleu):
    """BLEU of Moses's tokens, unsmoothed; the language is needed, for its abbreviations and its apostrophes.

    The tokenizer's two switches are off. Cutting words at their hyphens (`-a`) makes more and easier tokens and so a
    higher score, which would not compare with the published ones; escaping (`&quot;` for a quotation mark) only renames
    tokens and leaves the score as it is. Nor is there smoothing: in that script, a corpus without one common 4-gram
    scores 0.

    Args:
        lowercase: Count without regard to case, of all letters; the script's `-lc` leaves those that are not ASCII.
    """

    def __init__(self, *, lowercase: bool = False) -> None:
        self.name = "tokenised lower-cased BLEU" if lowercase else "tokenised BLEU"
        self.lowercase = lowercase

    def tokens(self, lines: Sequence[str], language: str | None) -> list[str]:
        """What is counted of text: tokens with spaces between them."""
        return moses(lines, language)

    def tokenizer(self, language: str | None) -> str:
        """What the signature says of the tokens."""
        return f"moses-{language}-sacremoses-{version('sacremoses')}"

    def counter(self, language: str | None) -> BLEU:
        """sacreBLEU's BLEU of tokens."""
        # `force` says that the text is meant to be tokenised already; nothing is cut a second time.
        return BLEU(tokenize="none", force=True, smooth_method="none", lowercase=self.lowercase)

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        moses([], language)
        return super().signature(language, references).replace("tok:none", f"tok:{self.tokenizer(language)}")

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Of the tokens, as those of `bleu.Bleu`: `(sentences, 10)`."""
        tokens = [self.tokens(lines, language) for lines in (hypotheses, *references)]
        return super().counts(tokens[0], tokens[1:], language)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100; 0 where an n-gram order has no match."""
        return bleu(sums, smoothing=0)


def moses(lines: Sequence[str], language: str | None) -> list[str]:
    """Cut text into tokens with spaces between them, as Moses's `tokenizer.perl -no-escape`.

    Raises:
        ValueError: if there is no language.
        LanguageError: if it is one that Moses does not cut into words.
    """
    if (own := tokenizer_of(language)) != RULE_13A:
        raise LanguageError(
            f"Moses does not cut language={language} into words; sacreBLEU's tokenizer {own} does, which counts bleu."
        )
    if not language:
        raise ValueError(
            "language is not set, and Moses tokenises by the rules of one; give the ISO code of the target, as in "
            "language=de, or choose other metrics."
        )
    tokenizer = _tokenizer(language)
    return [tokenizer.tokenize(line, escape=False, return_str=True) for line in lines]


@cache
def _tokenizer(language: str) -> MosesTokenizer:
    """Of a language; says once if Moses does not know it."""
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        log.warning(
            "Moses has no abbreviations for language=%s and takes the English ones; it has them for %s.",
            language,
            ", ".join(known),
        )
    return MosesTokenizer(language)
