"""How well the words of a translation are those of the reference, in whatever order: a metric that is no BLEU."""

from collections import Counter
from collections.abc import Sequence

import numpy as np


class WordF1:
    """F1 of words, as bags, over the whole text."""

    name = "word F1"
    higher_is_better = True

    def signature(self, language: str | None, references: int = 1) -> str:
        """How it is counted."""
        return f"words:spaces|refs:{references}"

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str | None
    ) -> np.ndarray:
        """Words in both, in the hypothesis, in the reference, `(sentences, 3)`; of several references the first."""
        bags = [[Counter(line.split()) for line in lines] for lines in (hypotheses, references[0])]
        return np.array([[(a & b).total(), a.total(), b.total()] for a, b in zip(*bags, strict=True)], dtype=float)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """In percent, `(..., 3)` to `(...)`."""
        return 200 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)
