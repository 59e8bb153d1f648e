"""chrF, the F-score of character n-grams (Popovic 2015), as sacreBLEU counts it; needs no tokens."""

import numpy as np
from sacrebleu.metrics import CHRF

from aiayn.evaluation.metric import CountedBySacreBleu

BETA = 2  # how much more recall weighs than precision


class Chrf(CountedBySacreBleu):
    """chrF2 of up to six characters, in any language."""

    name = "chrF2"

    def counter(self, language: str | None) -> CHRF:
        """sacreBLEU's own, of the best reference of each sentence.

        Its counts are of the hypothesis, of the reference, and common to both, for each order: `(sentences, 18)`.
        """
        return CHRF(beta=BETA)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100, of the mean precision and the mean recall of the orders that both sides have."""
        hypothesis, reference, common = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)  # (..., 6) each
        both = (hypothesis > 0) & (reference > 0)
        orders = np.maximum(both.sum(-1), 1)
        precision, recall = (
            np.where(both, common / np.maximum(side, 1), 0).sum(-1) / orders for side in (hypothesis, reference)
        )
        weighed = BETA**2 * precision + recall
        return np.where(weighed > 0, 100 * ((1 + BETA**2) * precision * recall / np.where(weighed > 0, weighed, 1)), 0)
