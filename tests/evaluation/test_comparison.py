"""Scores and p-values against sacreBLEU's own and against counts of ours; buckets against worked examples."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from test_significance import corpus

from aiayn.evaluation.comparison import (
    FREQUENCIES,
    bucket_names,
    differences,
    most_apart,
    occurrences,
    score_by_length,
    sentence_scores,
    words_by_frequency,
)
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.metrics.chrf import Chrf
from aiayn.evaluation.metrics.exact_match import ExactMatch
from aiayn.evaluation.metrics.ter import Ter

TRIALS = 211  # of the randomisation; 10,000 take seconds


METRICS = (Bleu(), Chrf(), Ter())


def test_scores_and_p_values_are_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PairedTest._DEFAULT_SAMPLES, "ar", TRIALS)
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    references, good, bad = corpus()
    found = differences(METRICS, good, bad, references, language="en", trials=TRIALS)
    assert [difference.name for difference in found] == ["BLEU", "chrF2", "TER"]
    for difference, metric in zip(found, (BLEU(), CHRF(), TER()), strict=True):
        assert difference.scores == tuple(metric.corpus_score(system, [references]).score for system in (good, bad))
        for kind, p_value in (("bs", difference.bootstrap), ("ar", difference.randomisation)):
            _, results = PairedTest([("", good), ("", bad)], {"": metric}, [references], test_type=kind)()
            assert p_value == pytest.approx(results[difference.name][1].p_value, abs=1.5 / 1001)  # theirs is in float32
            assert 0 < p_value < 1
        assert difference.signature.startswith("nrefs:1|")
        assert difference.signature.endswith(f"|bs:1000|ar:{TRIALS}|seed:12345")


def test_any_metric_has_p_values() -> None:
    references, good, bad = corpus()
    (found,) = differences([ExactMatch()], good, bad, references, language=None, trials=TRIALS)
    assert found.scores[0] > found.scores[1]
    assert 0 < found.bootstrap < 0.5 > found.randomisation > 0


def test_a_system_does_not_differ_from_itself() -> None:
    references, good, _ = corpus()
    for difference in differences(METRICS, good, good, references, language="en", trials=TRIALS):
        assert difference.scores[0] == difference.scores[1]
        assert difference.bootstrap == difference.randomisation == 1


def test_where_nothing_that_a_score_counts_differs_its_p_value_is_one() -> None:
    references, good, _ = corpus()
    shouting = [line.upper() for line in good]  # TER does not look at case
    bleu, _, ter = differences(METRICS, good, shouting, references, language="en", trials=TRIALS)
    assert (bleu.bootstrap, bleu.randomisation) == (1 / 1001, 1 / (TRIALS + 1))
    assert (ter.bootstrap, ter.randomisation) == (1, 1)


def test_scores_of_sentences_are_sacrebleus() -> None:
    hypotheses, references = ["a cat", "", "the dog ran"], ["a cat", "a mat", "the dog sat"]
    found = sentence_scores(hypotheses, references)
    assert found[:2].tolist() == [100, 0]
    assert found[2] == CHRF().sentence_score(hypotheses[2], [references[2]]).score


def test_only_gains_are_shown_the_largest_first() -> None:
    gains = np.array([2.0, -7.0, 0.0, 3.0, 2.0])
    assert most_apart(gains, 11) == [3, 0, 4]
    assert most_apart(gains, 2) == [3, 0]
    assert most_apart(-gains, 2) == [1]
    assert most_apart(gains, 0) == []


def test_the_score_of_a_length_is_that_of_its_sentences() -> None:
    references, good, bad = corpus()
    sources = ["one, two, three-four five."] * 17 + ["a b c d e f"] * 13 + ["w " * 61] * 31
    found = score_by_length(Bleu(), sources, references, [good, bad], language=None)
    assert [(bucket.name, bucket.size) for bucket in found] == [("0 to 5", 17), ("6 to 10", 13), ("more than 60", 31)]
    expected = [BLEU().corpus_score(system[17:30], [references[17:30]]).score for system in (good, bad)]
    assert found[1].figures == pytest.approx(expected, abs=1e-9)


def test_words_are_counted_in_one_pass_where_they_are_wanted() -> None:
    text = iter(["Der Hund, der Hund!", "ein Hundehaus; \u00fcber 3,5 m"])
    assert occurrences(text, ["Hund", "der", "\u00fcber", "5", "Maus"]) == {"Hund": 2, "der": 1, "\u00fcber": 1, "5": 1}
    assert next(text, None) is None


def test_a_word_is_had_as_often_as_it_is_translated() -> None:
    references = ["the cat and the dog", "the mouse."]
    systems = [["the cat, the cat the", "a dog"], ["dog and the cat", "the the mouse"]]
    found = words_by_frequency(references, systems, {"the": 101, "cat": 5, "dog": 1, "mouse": 1})
    assert [(bucket.name, bucket.size) for bucket in found] == [
        ("0", 1),  # and
        ("1", 2),  # dog, mouse
        ("2 to 5", 1),  # cat
        ("more than 100", 3),  # the
    ]
    assert [bucket.figures for bucket in found] == [(0, 100), (0, 100), (100, 100), pytest.approx((200 / 3, 200 / 3))]


def test_buckets_leave_no_number_out() -> None:
    assert bucket_names(FREQUENCIES) == ["0", "1", "2 to 5", "6 to 20", "21 to 100", "more than 100"]
    assert bucket_names((3,)) == ["0 to 3", "more than 3"]
