"""How many outputs of a parser were no tree over the sentence's words and had to be made one."""

import numpy as np


class Mended:
    """Percentage; the problem counts it, as it alone sees what was decoded before it was mended."""

    name = "mended"
    higher_is_better = False

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        return "share of outputs"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Raises:
        ValueError: always; trees do not show whether they were mended.
        """
        raise ValueError("mended is counted while a parser is evaluated; finished trees do not show it.")

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Of sums `(..., 2)`: outputs that were mended, and all."""
        sums = np.asarray(sums, dtype=float)
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)
