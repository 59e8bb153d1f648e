"""The paper's BLEU: Moses's tokens, with hyphens inside words as tokens of their own.

Section 6.1 does not say so; its authors' script does, which is for English-German
(tensorflow/tensor2tensor:tensor2tensor/utils/get_ende_bleu.sh). How the paper's English-French was counted is not
known. A hyphen is an easy match, so the score is higher.
"""

import re
from collections.abc import Sequence

import numpy as np
from sacremoses import MosesPunctNormalizer

from aiayn.evaluation.metrics.bleu_tokenized import BleuTokenized, moses

SPLIT = "##AT##-##AT##"  # a hyphen inside a word, once it is a token of its own
SPLIT_BY_MOSES = " @-@ "  # the same from `tokenizer.perl -a`


class BleuPaper(BleuTokenized):
    """BLEU as in the paper; the language is needed.

    Args:
        ascii_punctuation: Replace Unicode's punctuation on both sides as `replace-unicode-punctuation.perl` of Moses
            does, for references that have ASCII quotation marks only.
    """

    def __init__(self, *, ascii_punctuation: bool = False) -> None:
        super().__init__()
        self.name = "BLEU as in the paper"
        self.ascii_punctuation = ascii_punctuation

    def tokens(self, lines: Sequence[str], language: str | None) -> list[str]:
        """Words at their hyphens apart."""
        if self.ascii_punctuation:
            lines = list(map(MosesPunctNormalizer().replace_unicode_punct, lines))
        return [split_hyphens(line) for line in moses(lines, language)]

    def tokenizer(self, language: str | None) -> str:
        """The steps, in their order."""
        return f"{'ascii+' * self.ascii_punctuation}{super().tokenizer(language)}+atat"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """As `BleuTokenized` does.

        Raises:
            ValueError: besides `Metric`'s reasons, if words are split at hyphens already: twice would raise the score.
        """
        for side, lines in (("hypotheses", hypotheses), *(("references", lines) for lines in references)):
            for number, line in enumerate(lines, start=1):
                if found := next((mark for mark in (SPLIT, SPLIT_BY_MOSES) if mark in line), None):
                    raise ValueError(
                        f"the paper's BLEU splits words at hyphens; line {number} of the {side} is split already, it "
                        f"has {found.strip()}; give plain text, or leave bleu_paper out of metrics."
                    )
        return super().counts(hypotheses, references, language)


def split_hyphens(line: str) -> str:
    """Make hyphens inside words tokens of their own, `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`.

    As in that command, what one match has used up begins no other: `x-y-z` keeps its second hyphen.
    """
    return re.sub(r"(\S)-(\S)", rf"\1 {SPLIT} \2", line)
