"""The share of the outputs that are their reference, letter by letter."""

import numpy as np


class ExactMatch:
    """Outputs that equal one of their references, in per cent."""

    name = "exact match, %"
    higher_is_better = True

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        return f"nrefs:{references}|case:mixed"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Whether it is equal, and that it is one: `(sentences, 2)`."""
        equal = [hypothesis in of_each for hypothesis, *of_each in zip(hypotheses, *references, strict=True)]
        return np.column_stack([equal, np.ones(len(equal))]).astype(np.int64)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100."""
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)
