"""Scores against figures that others measured, and what the scores refuse."""

import gzip
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import sacrebleu

from aiayn.evaluation.bleu import Score, chrf, sacre_bleu, scores, tokenized_bleu

BLEU_DATA = Path(__file__).parents[2].parent / "shared" / "data" / "bleu"


@pytest.fixture(scope="module")
def newstest2017() -> tuple[list[str], list[str]]:
    """Output of a real system, and its reference: 3004 lines, German."""
    if not BLEU_DATA.exists():
        pytest.skip(f"needs the system output in {BLEU_DATA}")
    hypotheses, references = (
        gzip.decompress((BLEU_DATA / f"newstest2017.{side}.de.gz").read_bytes()).decode().removesuffix("\n").split("\n")
        for side in ("C-3MA", "reference")
    )
    return hypotheses, references


def test_sacrebleu_of_a_known_system_is_the_published_figure(newstest2017):
    # sacreBLEU's own tests: 22.67 for this output.
    assert sacre_bleu(*newstest2017).value == pytest.approx(22.6746, abs=5e-5)


def test_tokenized_bleu_of_a_known_system_is_the_scripts_figure(newstest2017):
    # tokenizer.perl -l de and multi-bleu.perl print 22.40; sacremoses is a port of the former, hence the tolerance.
    assert tokenized_bleu(*newstest2017, language="de", lowercase=False).value == pytest.approx(22.40, abs=0.05)


def test_lower_casing_raises_the_score_of_a_cased_system(newstest2017):
    cased = tokenized_bleu(*newstest2017, language="de", lowercase=False)
    assert tokenized_bleu(*newstest2017, language="de").value > cased.value + 0.2


def test_perfect_translations_score_100_and_case_counts_only_where_it_should():
    sentences = ["The cat sat on the mat, as ever.", "A man in blue is riding a well-known horse."]
    result = scores([sentence.upper() for sentence in sentences], sentences)
    assert result["bleu_tokenized_lowercase"].value == pytest.approx(100)
    assert result["bleu"].value < 50
    assert {key: score.value for key, score in scores(sentences, sentences).items()} == pytest.approx(
        {"bleu": 100, "chrf": 100, "bleu_tokenized_lowercase": 100}
    )


def test_signatures_say_how_each_score_was_counted():
    result = scores(["a b c d e"], ["a b c d e"], language="fr")
    assert result["bleu"].signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert result["chrf"].signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert "case:lc" in result["bleu_tokenized_lowercase"].signature
    assert "tok:moses-fr-sacremoses-" in result["bleu_tokenized_lowercase"].signature
    assert str(Score("BLEU", 2.357, "tok:13a")) == "BLEU 2.36 (tok:13a)"


def test_a_word_with_hyphens_is_one_token():
    # Cut at its hyphens it would make four tokens and three hyphens in common, and so a 4-gram.
    assert tokenized_bleu(["one two state-of-the-art"], ["six ten state-of-the-art"]).value == 0


def test_the_language_decides_how_apostrophes_are_cut():
    # French keeps the apostrophe with the article (l' un), English with what follows (l 'un).
    pair = ["l'un deux trois quatre"], ["un deux trois quatre"]
    assert tokenized_bleu(*pair, language="fr").value > tokenized_bleu(*pair, language="en").value == 0


def test_a_blank_hypothesis_counts_against_the_score():
    sentences = ["one two three four five", "six seven eight nine ten"]
    assert 0 < sacre_bleu([sentences[0], ""], sentences).value < 50


@pytest.mark.parametrize("score", [sacre_bleu, chrf, tokenized_bleu, scores])
def test_unequal_numbers_are_refused_with_both_counts(score):
    with pytest.raises(ValueError, match="got 3 hypotheses and 2 references"):
        score(["a"] * 3, ["a"] * 2)


@pytest.mark.parametrize("score", [sacre_bleu, chrf, tokenized_bleu, scores])
def test_nothing_to_score_is_refused(score):
    with pytest.raises(ValueError, match="something to score"):
        score([], [])


def test_several_references_for_a_sentence_are_refused():
    with pytest.raises(ValueError, match="references must be strings, got list at 1"):
        scores(["a", "b"], ["a", ["b", "c"]])


def test_a_score_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Score("BLEU", 28.4, "").value = 41.8
