"""Perplexity of the references, for each piece with EOS, unsmoothed (section 6.2): of probabilities, not of text."""

import numpy as np

MOST = 50.0  # nats a piece; its exponential is shown as a number still


class Perplexity:
    """The exponential of the mean negative log-likelihood of a piece; who has the model counts it.

    Counts are the nats and the pieces of each sentence, `(sentences, 2)`. Comparable where the pieces are the same.
    """

    name = "perplexity"
    higher_is_better = False

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        return "unit:piece|eos:yes|smooth:none"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Always refused with a ValueError: text alone has no probabilities."""
        raise ValueError("perplexity is of a model's probabilities, which text alone has not; leave it out of metrics.")

    def value(self, sums: np.ndarray) -> np.ndarray:
        """At least 1."""
        return np.exp(np.minimum(sums[..., 0] / np.maximum(sums[..., 1], 1), MOST))
