"""Scores against figures that others measured, and what the scores refuse."""

import gzip
import math
from dataclasses import FrozenInstanceError
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from aiayn.evaluation.metric import LanguageError, Metric, Score, counted, ter_last
from aiayn.evaluation.metrics.bleu import Bleu, _warn_of_unspaced_text
from aiayn.evaluation.metrics.bleu_paper import BleuPaper, split_hyphens
from aiayn.evaluation.metrics.bleu_tokenized import BleuTokenized, moses
from aiayn.evaluation.metrics.chrf import Chrf
from aiayn.evaluation.metrics.exact_match import ExactMatch
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.evaluation.metrics.ter import Ter

BLEU_DATA = Path(__file__).parents[2].parent / "shared" / "data" / "bleu"


def score(metric: Metric, hypotheses, references, language=None) -> Score:
    return counted(metric, hypotheses, references, language)[0]


@pytest.fixture(scope="module")
def newstest2017() -> tuple[list[str], list[list[str]]]:
    """Output of a real system, and its reference, the only set: 3004 lines, German."""
    if not BLEU_DATA.exists():
        pytest.skip(f"needs the system output in {BLEU_DATA}")
    hypotheses, references = (
        gzip.decompress((BLEU_DATA / f"newstest2017.{side}.de.gz").read_bytes()).decode().removesuffix("\n").split("\n")
        for side in ("C-3MA", "reference")
    )
    return hypotheses, [references]


def test_sacrebleu_of_a_known_system_is_the_published_figure(newstest2017):
    # sacreBLEU's own tests: 22.67 for this output.
    assert score(Bleu(), *newstest2017).value == pytest.approx(22.6746, abs=5e-5)


def test_tokenized_bleu_of_a_known_system_is_the_scripts_figure(newstest2017):
    # tokenizer.perl -l de and multi-bleu.perl print 22.40.
    assert score(BleuTokenized(), *newstest2017, "de").value == pytest.approx(22.40, abs=0.005)


def test_the_papers_bleu_of_a_known_system_is_the_scripts_figure(newstest2017):
    # The same with s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g on both sides: 23.04.
    assert score(BleuPaper(), *newstest2017, "de").value == pytest.approx(23.04, abs=0.005)


@pytest.mark.slow
def test_lower_casing_raises_the_score_of_a_cased_system(newstest2017):
    cased, lower = (score(BleuTokenized(lowercase=lowercase), *newstest2017, "de") for lowercase in (False, True))
    assert lower.value > cased.value + 0.2
    assert score(Bleu(lowercase=True), *newstest2017).value > score(Bleu(), *newstest2017).value + 0.2


METRICS = {"bleu": Bleu(), "chrf": Chrf(), "ter": Ter(), "tokenized": BleuTokenized(), "paper": BleuPaper()}
METRICS["exact_match"] = ExactMatch()
every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@every_metric
def test_perfect_translations_have_the_best_score(metric):
    sentences = ["The cat sat on the mat, as ever.", "A man in blue is riding a well-known horse."]
    assert score(metric, sentences, [sentences], "en").value == pytest.approx(100 if metric.higher_is_better else 0)


@pytest.mark.parametrize(
    ("value", "shown"), [(27.314, "27.31"), (0.91234, "0.9123"), (1.0, "1.0000"), (0.0, "0.00"), (-0.5, "-0.5000")]
)
def test_a_share_has_four_decimals_and_a_percentage_two(value: float, shown: str) -> None:
    assert str(Score("F1", value, "words")) == f"F1 {shown} (words)"


def test_case_counts_only_where_it_should():
    shouted, plain = ["THE CAT SAT ON THE MAT, AS EVER."], [["The cat sat on the mat, as ever."]]
    assert score(Bleu(), shouted, plain).value < 50
    assert score(Bleu(lowercase=True), shouted, plain).value == pytest.approx(100)
    assert score(BleuTokenized(), shouted, plain, "en").value < 50
    assert score(BleuTokenized(lowercase=True), shouted, plain, "en").value == pytest.approx(100)
    assert score(Ter(), shouted, plain).value == 0


def test_signatures_say_how_each_score_was_counted():
    text = ["a b c d e"], [["a b c d e"], ["a b c"]]
    sacre = f"eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert score(Bleu(), *text).signature == f"nrefs:2|case:mixed|{sacre}"
    assert score(Bleu(lowercase=True), *text).signature == f"nrefs:2|case:lc|{sacre}"
    assert score(Chrf(), *text).signature.startswith("nrefs:2|case:mixed|eff:yes|nc:6|nw:0")
    assert score(Ter(), *text).signature.startswith("nrefs:2|case:lc|tok:tercom")
    tokenizer = f"moses-fr-sacremoses-{version('sacremoses')}"
    for metric, tokens in (
        (BleuTokenized(lowercase=True), tokenizer),
        (BleuPaper(), f"{tokenizer}+atat"),
        (BleuPaper(ascii_punctuation=True), f"ascii+{tokenizer}+atat"),
    ):
        assert f"|tok:{tokens}|smooth:none|" in score(metric, *text, "fr").signature
    assert str(Score("BLEU", 2.357, "tok:13a")) == "BLEU 2.36 (tok:13a)"


@every_metric
def test_of_several_references_any_will_do(metric):
    first, second = ["one two three four five"], ["six seven eight nine ten"]
    best = score(metric, first, [first], "en").value
    assert score(metric, first, [second, first], "en").value == pytest.approx(best)
    assert score(metric, first, [second], "en").value != pytest.approx(best)


def test_the_closest_reference_decides_about_brevity():
    # multi-bleu.perl: of 4 and 9 words, 4 is closer to 5, so a hypothesis of 5 is not too short; alone, 9 words are.
    hypothesis, short, long = ["a b c d e"], ["a b c d"], ["a b c d e f g h i"]
    assert score(BleuTokenized(), hypothesis, [short, long], "en").value == pytest.approx(100)
    assert score(BleuTokenized(), hypothesis, [long], "en").value == pytest.approx(100 * math.exp(1 - 9 / 5))


def test_a_word_with_hyphens_is_one_token_but_in_the_papers_bleu():
    # Cut at its hyphens it makes four tokens and three hyphens in common, and so a 4-gram.
    pair = ["one two state-of-the-art"], [["six ten state-of-the-art"]]
    assert score(BleuTokenized(), *pair, "en").value == 0
    # Of 9 tokens 7 match, of the 2-, 3- and 4-grams those within these 7.
    assert score(BleuPaper(), *pair, "en").value == pytest.approx(100 * (7 / 9 * 6 / 8 * 5 / 7 * 4 / 6) ** 0.25)


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),  # the example of nlp.stanford.edu/projects/nmt
        ("state-of-the-art", "state ##AT##-##AT## of ##AT##-##AT## the ##AT##-##AT## art"),
        ("x-y-z", "x ##AT##-##AT## y-z"),  # perl's s///g has used up the y
        ("E- und U-Bahn", "E- und U ##AT##-##AT## Bahn"),
        ("a - b -- c", "a - b -- c"),
    ],
)
def test_hyphens_inside_words_are_split_as_the_script_does(line, split):
    assert split_hyphens(line) == split


@pytest.mark.parametrize("mark", ["##AT##-##AT##", "@-@"])
def test_the_papers_bleu_refuses_text_that_is_split_already(mark):
    plain, split = ["a well-known horse", "a well-known text"], ["a well-known horse", f"a well {mark} known text"]
    with pytest.raises(ValueError, match=f"line 2 of the hypotheses is split already, it has {mark}"):
        score(BleuPaper(), split, [plain], "en")
    with pytest.raises(ValueError, match="line 2 of the references is split already"):
        score(BleuPaper(), plain, [plain, split], "en")


def test_unicode_punctuation_can_be_replaced_where_the_references_have_none():
    pair = ["he said \u201cyes \u2026\u201d to me\u2019s"], [['he said "yes ..." to me\'s']]
    assert score(BleuPaper(), *pair, "de").value < 50
    assert score(BleuPaper(ascii_punctuation=True), *pair, "de").value == pytest.approx(100)


def test_the_language_decides_how_apostrophes_are_cut():
    # French keeps the apostrophe with the article (l' un), English with what follows (l 'un).
    assert moses(["l'un de 3,5 S. 4."], "fr") == ["l' un de 3,5 S. 4 ."]
    assert moses(["l'un"], "en") == ["l 'un"]


@pytest.mark.parametrize("metric", [BleuTokenized(), BleuPaper()])
@pytest.mark.parametrize("language", [None, ""])
def test_moses_needs_a_language(metric, language):
    with pytest.raises(ValueError, match=r"language is not set.*language=de"):
        score(metric, ["a"], [["a"]], language)


def test_a_language_that_moses_does_not_know_is_said_once(caplog):
    for _ in range(2):
        moses(["a"], "qq")
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "Moses has no abbreviations for language=qq and takes the English ones"
    ]


def test_a_blank_hypothesis_counts_against_the_score():
    sentences = ["one two three four five", "six seven eight nine ten"]
    assert 0 < score(Bleu(), [sentences[0], ""], [sentences]).value < 50


@every_metric
def test_unequal_numbers_are_refused_with_both_counts(metric):
    with pytest.raises(ValueError, match="got 3 hypotheses and 2 references"):
        score(metric, ["a"] * 3, [["a"] * 3, ["a"] * 2], "en")


@every_metric
@pytest.mark.parametrize(
    ("hypotheses", "references", "words"),
    [
        ([], [[]], "something to score"),
        (["a"], [], "at least one set of references"),
        (["a", "b"], ["a", "b"], "a list for each set"),
        (["a", "b"], [["a", ["b", "c"]]], "references must be strings, got list at 1"),
        (["a", None], [["a", "b"]], "hypotheses must be strings, got NoneType at 1"),
    ],
)
def test_what_is_no_text_is_refused(metric, hypotheses, references, words):
    with pytest.raises(ValueError, match=words):
        score(metric, hypotheses, references, "en")


def test_a_score_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Score("BLEU", 28.4, "").value = 41.8


# Without spaces, as Chinese is written; three sentences, and what a system made of them: a word or two are others.
CHINESE = [
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u3002",
    "\u4ed6\u6628\u5929\u4e70\u4e86\u4e09\u672c\u65b0\u4e66\u548c\u4e00\u652f\u7b14\u3002",
    "\u8001\u5e08\u8ba9\u5b66\u751f\u4eec\u660e\u5929\u65e9\u70b9\u5230\u5b66\u6821\u3002",
]
TRANSLATED = [line.replace("\u6563\u6b65", "\u8d70\u8d70").replace("\u4e00", "\u4e24") for line in CHINESE]


def test_bleu_of_chinese_is_that_of_sacrebleus_own_tokenizer():
    expected = sacrebleu.corpus_bleu(TRANSLATED, [CHINESE], tokenize="zh").score
    assert expected > 80
    for language in ("zh", "zh-Hans", "zho_Hans", "cmn", "ZH"):
        found = score(Bleu(), TRANSLATED, [CHINESE], language)
        assert found.value == pytest.approx(expected)
        assert "|tok:zh|" in found.signature


@pytest.mark.parametrize(
    ("language", "tokenizer", "line"),
    [
        ("ja", "ja-mecab", "\u732b\u304c\u597d\u304d\u3067\u3059"),
        ("kor", "ko-mecab", "\uace0\uc591\uc774\ub97c \uc88b\uc544\ud569\ub2c8\ub2e4 \ub098\ub294"),
        ("jav", "13a", "kucing iku turu ing klasa"),
        (None, "13a", "the cat sat on the mat"),
    ],
)
def test_a_language_has_the_tokenizer_that_sacrebleu_has_for_it(language, tokenizer, line):
    found = score(Bleu(), [line], [[line]], language)
    assert found.value == pytest.approx(100)
    assert f"|tok:{tokenizer}" in found.signature


def test_a_tokenizer_can_be_chosen_and_an_unknown_one_is_refused():
    chosen = score(Bleu(tokenize="char"), TRANSLATED, [CHINESE], "zh")
    assert chosen.value == pytest.approx(sacrebleu.corpus_bleu(TRANSLATED, [CHINESE], tokenize="char").score)
    assert "|tok:char|" in chosen.signature
    with pytest.raises(ValueError, match=r"metrics.bleu.tokenize must be one of .*none, zh, 13a, intl.*, got 'moses'"):
        score(Bleu(tokenize="moses"), ["a"], [["a"]])


def test_a_missing_package_is_named_in_a_line(monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ValueError, match=r"tokenize=ja-mecab needs mecab-python3 and ipadic") as error:
        score(Bleu(), ["a"], [["a"]], "ja")
    assert "\n" not in str(error.value)


def test_text_without_spaces_in_an_unknown_language_is_warned_of(caplog):
    _warn_of_unspaced_text.cache_clear()
    score(Bleu(), TRANSLATED, [CHINESE], "zh")
    score(Bleu(), ["a b"], [["a b"]])
    assert not caplog.records
    for _ in range(2):
        assert score(Bleu(), TRANSLATED, [CHINESE]).value == 0
    assert [record.getMessage()[:54] for record in caplog.records] == [
        "BLEU is counted by rule 13a (the language is not known"
    ]


def test_a_word_of_chinese_is_a_character_for_ter():
    # Sentences are one word each for tercom; three of 45 characters are others.
    assert score(Ter(), TRANSLATED, [CHINESE]).value == pytest.approx(200 / 3)
    found = score(Ter(), TRANSLATED, [CHINESE], "zh")
    assert found.value == pytest.approx(100 * 3 / 45, abs=1)
    assert "asian:yes" in found.signature


@pytest.mark.parametrize("metric", [BleuTokenized(), BleuPaper()])
@pytest.mark.parametrize("language", ["zh", "ja", "kor"])
def test_moses_refuses_languages_that_it_does_not_cut(metric, language):
    with pytest.raises(LanguageError, match=f"Moses does not cut language={language} into words"):
        score(metric, ["a"], [["a"]], language)


def test_ter_is_sacrebleus_to_the_last_digit():
    first = ["a cat sat on a mat", "", "the dog ran", "b a c d e f g", ""]
    references = [
        ["on a mat a cat sat", "a", "the dog ran off", "a b c d e g f", ""],
        ["a cat", "b c", "", "g f e", ""],
    ]
    for sets in (references, references[:1], [[""] * 5]):
        assert score(Ter(), first, sets).value == sacrebleu.corpus_ter(first, sets).score
    assert score(Ter(), [""], [[""]]).value == 0


def test_ter_is_counted_last_whatever_the_order():
    assert list(ter_last({"ter": Ter(), "bleu": Bleu(), "chrf": Chrf()})) == ["bleu", "chrf", "ter"]


def system(seed: int) -> tuple[list[str], list[list[str]]]:
    """Sentences of words that no two systems choose alike, and two sets of references."""
    rng = np.random.default_rng(seed)
    words = np.array("the a cat dog sat ran on mat , . \u00fcber U.S. 3,5 don't well-known".split())  # noqa: SIM905
    sides = [[" ".join(rng.choice(words, rng.integers(0, 17))) for _ in range(13)] for _ in range(3)]
    mixed = [" ".join([*one.split()[:7], *other.split()[7:]]) for one, other in zip(*sides[:2], strict=True)]
    return mixed, sides[1:]


@pytest.mark.parametrize(
    ("metric", "theirs"),
    [
        (Bleu(), sacrebleu.BLEU()),
        (Bleu(tokenize="char", lowercase=True), sacrebleu.BLEU(tokenize="char", lowercase=True)),
        (Chrf(), sacrebleu.CHRF()),
        (Ter(), sacrebleu.TER()),
    ],
    ids=["bleu", "bleu of characters", "chrf", "ter"],
)
def test_scores_and_signatures_are_sacrebleus_to_the_last_digit(metric, theirs):
    for seed in range(53):
        hypotheses, references = system(seed)
        for sets in (references, references[:1]):
            found = score(metric, hypotheses, sets)
            assert found.value == theirs.corpus_score(hypotheses, sets).score
            assert found.signature == str(theirs.get_signature())


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (["a cat sat on a mat"], ["a cat sat on the mat"]),
        (["a cat"], ["a cat"]),  # no 4-gram at all
        (["cat a mat on", "the dog ran under it"], ["a cat on a mat sat", "it ran under the dog"]),  # smoothed
        (["x y z v w"], ["a b c d e"]),  # nothing in common
        (["", "a cat sat on the mat"], ["a dog", "a cat sat on the mat"]),
        ([""], ["a dog"]),
        (["a cat sat on the mat", "and more words than that"], ["a cat sat on the mat", "and"]),  # too long
    ],
)
def test_few_words_in_common_are_worth_what_they_are_to_sacrebleu(hypotheses, references):
    for smoothing, metric in (("exp", Bleu()), ("none", BleuTokenized())):
        theirs = sacrebleu.BLEU(smooth_method=smoothing)
        assert (
            score(metric, hypotheses, [references], "en").value == theirs.corpus_score(hypotheses, [references]).score
        )
    for metric, theirs in ((Chrf(), sacrebleu.CHRF()), (Ter(), sacrebleu.TER())):
        assert score(metric, hypotheses, [references]).value == theirs.corpus_score(hypotheses, [references]).score


@every_metric
def test_a_corpus_is_worth_what_the_sums_of_its_sentences_are(metric):
    systems = [system(seed) for seed in (1, 2, 3)]
    found = [counted(metric, hypotheses, references, "en") for hypotheses, references in systems]
    sums = np.stack([counts.sum(0) for _, counts in found])
    assert {counts.shape for _, counts in found} == {(13, sums.shape[1])}
    np.testing.assert_array_equal(metric.value(sums), [score.value for score, _ in found])
    np.testing.assert_array_equal(metric.value(sums[None]), [[score.value for score, _ in found]])
    # Each sentence may be counted by itself, and in any order.
    hypotheses, references = systems[0]
    alone = [metric.counts([hypotheses[i]], [[lines[i]] for lines in references], "en")[0] for i in range(13)]
    np.testing.assert_allclose(np.array(alone), found[0][1])
    assert np.isfinite(metric.value(np.zeros((2, sums.shape[1])))).all()


def test_perplexity_weighs_sentences_by_their_pieces_and_is_not_of_text():
    assert Perplexity().value(np.array([[3.0, 1], [5.0, 7]]).sum(0)) == pytest.approx(math.e)
    assert np.isfinite(Perplexity().value(np.array([1e9, 1])))
    with pytest.raises(ValueError, match="perplexity is of a model's probabilities"):
        score(Perplexity(), ["a"], [["a"]])


def test_an_exact_match_is_letter_by_letter():
    hypotheses, references = ["a b", "a B", "c", ""], [["a b", "a b", "d", ""], ["x", "x", "c", "x"]]
    assert score(ExactMatch(), hypotheses, references).value == 75
    assert score(ExactMatch(), hypotheses, references[:1]).value == 50


def test_counts_that_are_not_of_each_sentence_are_refused() -> None:
    class Whole(Chrf):
        def counts(self, hypotheses, references, language):
            return super().counts(hypotheses, references, language).sum(0, keepdims=True)

    with pytest.raises(ValueError, match=r"Whole\.counts must give a row of numbers for each sentence, \(2, columns\)"):
        counted(Whole(), ["a b", "c"], [["a b", "d"]], "en")


class Counting:
    """A metric with whatever counts it is given."""

    name, higher_is_better = "counting", True

    def __init__(self, found: Any) -> None:
        self.found = found

    def signature(self, language: str | None, references: int = 1) -> str:
        return "v:1"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        return np.array(self.found)

    def value(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 0]


@pytest.mark.parametrize("found", [[[1.0], [math.nan]], [[1.0], [math.inf]], [["a"], ["b"]], [[1j], [2j]]], ids=str)
def test_counts_that_are_no_finite_numbers_are_refused(found: list) -> None:
    with pytest.raises(ValueError, match=r"Counting\.counts must give finite numbers, got "):
        counted(Counting(found), ["a", "b"], [["a", "b"]], "en")


def test_truth_values_are_counted_as_numbers() -> None:
    score, counts = counted(Counting([[True], [True]]), ["a", "b"], [["a", "b"]], "en")
    assert (score.value, counts.dtype.kind) == (2, "i")


class Greedy(Counting):
    """A metric that eats what it is given."""

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        hypotheses.clear()
        references[0].clear()
        return super().counts(hypotheses, references, language)


def test_a_metric_cannot_change_what_others_are_given() -> None:
    hypotheses, references = ["a", "b"], [["c", "d"]]
    counted(Greedy([[1], [2]]), hypotheses, references, "en")
    assert (hypotheses, references) == (["a", "b"], [["c", "d"]])


def test_a_metric_without_a_name_is_refused() -> None:
    metric = Counting([[1]])
    metric.name = 5  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"Counting\.name must be a text, got 5"):
        counted(metric, ["a"], [["a"]], "en")
