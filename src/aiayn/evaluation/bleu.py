"""BLEU and chrF of a corpus, each with the signature that says how it was counted (section 6.1).

Three scores stand side by side, because a BLEU is comparable only to one that was counted alike: sacreBLEU's (cased,
tokenised by its own rule 13a) is what papers report today and what decides here; chrF needs no tokeniser at all; and
BLEU on tokenised lower-cased text is what the Multi30k papers and many older ones report.
"""

from dataclasses import dataclass
from importlib.metadata import version

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacremoses import MosesTokenizer


@dataclass(frozen=True)
class Score:
    """A figure between 0 and 100, and how it was counted."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def scores(hypotheses: list[str], references: list[str], *, language: str = "en") -> dict[str, Score]:
    """Score translations against one reference each.

    Args:
        hypotheses: The translations, as plain text.
        references: What a translator wrote, in the same order, as plain text.
        language: Of both, as an ISO code: Moses keeps a list of abbreviations and a rule for apostrophes for each. A
            language that it does not know gets the English list, as in its own script.

    Returns:
        The scores by key: `bleu`, `chrf`, `bleu_tokenized_lowercase`.

    Raises:
        ValueError: if the two lists differ in length, are empty, or hold anything but strings.
    """
    return {
        "bleu": sacre_bleu(hypotheses, references),
        "chrf": chrf(hypotheses, references),
        "bleu_tokenized_lowercase": tokenized_bleu(hypotheses, references, language=language),
    }


def sacre_bleu(hypotheses: list[str], references: list[str]) -> Score:
    """BLEU as sacreBLEU counts it by default: cased, tokenised by rule 13a."""
    return _score(BLEU(tokenize="13a"), hypotheses, references)


def chrf(hypotheses: list[str], references: list[str]) -> Score:
    """F-score of character n-grams up to six characters."""
    return _score(CHRF(), hypotheses, references)


def tokenized_bleu(
    hypotheses: list[str], references: list[str], *, language: str = "en", lowercase: bool = True
) -> Score:
    """BLEU on text cut by the Moses tokenizer, as `multi-bleu.perl` counts it (with `lowercase`, as its `-lc`).

    The tokenizer's two switches are off. Cutting words at their hyphens (`-a`) makes more and easier tokens and so a
    higher score, which would not compare with the published ones; escaping (`&quot;` for a quotation mark) only renames
    tokens and leaves the score as it is. Nor is there smoothing: in that script, a corpus without one common 4-gram
    scores 0.
    """
    _check(hypotheses, references)
    moses = MosesTokenizer(language)
    hypotheses, references = (
        [moses.tokenize(line, aggressive_dash_splits=False, escape=False, return_str=True) for line in side]
        for side in (hypotheses, references)
    )
    # `force` says that the text is meant to be tokenised already; nothing is cut a second time.
    metric = BLEU(tokenize="none", force=True, smooth_method="none", lowercase=lowercase)
    score = _score(metric, hypotheses, references)
    tokenizer = f"tok:moses-{language}-sacremoses-{version('sacremoses')}"
    name = "tokenised lower-cased BLEU" if lowercase else "tokenised BLEU"
    return Score(name, score.value, score.signature.replace("tok:none", tokenizer))


def _score(metric: Metric, hypotheses: list[str], references: list[str]) -> Score:
    _check(hypotheses, references)
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.name, result.score, str(metric.get_signature()))


def _check(hypotheses: list[str], references: list[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be as many, got {len(hypotheses)} hypotheses and {len(references)} "
            "references; give one reference for each hypothesis, in the same order."
        )
    if not hypotheses:
        raise ValueError("there must be something to score, got 0 hypotheses and 0 references; is the split empty?")
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        for number, line in enumerate(lines):
            if not isinstance(line, str):
                raise ValueError(
                    f"{name} must be strings, got {type(line).__name__} at {number}; give one string for each sentence."
                )
