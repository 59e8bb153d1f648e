"""Translation edit rate (Snover et al. 2006), as sacreBLEU counts it: edits and shifts for each word of the reference.

It is the only metric whose time grows with the errors: 6 s for 3,004 sentences of a WMT system, and minutes where the
right words stand in a wrong order. It has bounds (mjpost/sacrebleu:sacrebleu/metrics/lib_ter.py): 1,000 shifts are
tried in a sentence, each in a time that grows with its length, so that 1,500 words may take a minute. Lower ones would
change the score.
"""

import numpy as np
from sacrebleu.metrics import TER

from aiayn.evaluation.metric import CountedBySacreBleu
from aiayn.evaluation.metrics.bleu import tokenizer_of
from aiayn.progress import progress


class Ter(CountedBySacreBleu):
    """TER of lower-cased words, in per cent; of Chinese and Japanese each character is a word."""

    name = "TER"
    higher_is_better = False

    def counter(self, language: str | None) -> TER:
        """sacreBLEU's own, with `normalized` and `asian_support` for Chinese and Japanese."""
        by_character = tokenizer_of(language) in ("zh", "ja-mecab")
        return TER(normalized=by_character, asian_support=by_character)

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Edits, and words of the references, of several the mean: `(sentences, 2)`; a progress bar is shown."""
        counter, found = self.counter(language), []
        with progress("TER", total=len(hypotheses)) as advance:
            for hypothesis, *of_each in zip(hypotheses, *references, strict=True):
                score = counter.sentence_score(hypothesis, of_each)
                found.append((score.num_edits, score.ref_length))
                advance()
        return np.array(found)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Edits for each 100 words; 100 where there are none in the references, but edits."""
        edits, words = sums[..., 0], sums[..., 1]
        return 100 * np.where(words > 0, edits / np.where(words > 0, words, 1), edits > 0)
