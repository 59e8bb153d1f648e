"""The metric of parse trees is EVALB."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine

from aiayn.evaluation.metric import counted
from aiayn.evaluation.metrics.evalb import COLUMNS, Evalb, read_parameters

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "evalb"
needs_sample = pytest.mark.skipif(not SAMPLE.is_dir(), reason="needs EVALB's sample in ../shared/data/evalb")
GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))"


def counts(hypothesis: str, reference: str = GOLD, **options: Any) -> dict[str, int]:
    row = counted(Evalb(**options), [hypothesis], [[reference]], None)[1][0]
    return dict(zip(COLUMNS, row.tolist(), strict=True))


@needs_sample
def test_its_report_of_evalbs_sample_is_evalbs_own(in_process: CommandLine) -> None:
    done = in_process(
        *("task=score", "metrics=[evalb]", "format=evalb", f"metrics.evalb.parameters={SAMPLE / 'sample.prm'}"),
        *(f"hypotheses={SAMPLE / 'sample.tst'}", f"references={SAMPLE / 'sample.gld'}"),
    )
    assert done.stdout == (SAMPLE / "sample.rsl").read_text()
    assert done.stderr.splitlines() == [
        "12 : Words unmatch (is|was)",
        "13 : Length unmatch (4|5)",
        "16 : Length unmatch (4|5)",
        "17 : Length unmatch (4|6)",
        "20 : Words unmatch (this|That)",
    ]


@needs_sample
def test_the_file_that_papers_use_is_the_default() -> None:
    lines = [(SAMPLE / f"sample.{side}").read_text().split("\n")[:-1] for side in ("tst", "gld")]
    read, default = read_parameters(SAMPLE / "COLLINS.prm"), Evalb().parameters
    assert {**vars(read), "name": ""} == {**vars(default), "name": ""}
    score, _ = counted(Evalb(), lines[0], [lines[1]], None)
    assert (score.shown, score.signature) == ("F1 88.65", "evalb:labelled|prm:COLLINS|len:all")


# What EVALB (Flupp/evalb at HEAD, compiled) says of each: matched, gold, test, crossing, words, tags.
CASES = {
    "the same": (GOLD, (6, 6, 6, 0, 7, 7)),
    "attached higher": (
        "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat) (PP (IN in) (NP (NN town))))) (. .))",
        (5, 6, 6, 0, 7, 7),
    ),
    "a bracket that crosses": (
        "(S (NP (DT the) (NN dog) (X (VBZ sees))) (Y (DT a) (NN cat) (PP (IN in) (NP (NN town)))) (. .))",
        (3, 6, 6, 1, 7, 7),
    ),
    "one label twice over the same words": (
        "(S (NP (NP (DT the) (NN dog))) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))",
        (6, 6, 7, 0, 7, 7),
    ),
    "no tags": (
        "(S (NP (XX the) (XX dog)) (VP (XX sees) (NP (XX a) (XX cat)) (PP (XX in) (NP (XX town)))) (. .))",
        (6, 6, 6, 0, 7, 0),
    ),
    "function tags and TOP": (
        "(TOP (S (NP-SBJ-1 (DT the) (NN dog)) (VP=2 (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town))))"
        " (. .)))",
        (6, 6, 6, 0, 7, 7),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_brackets_are_counted_as_evalb_counts_them(name: str) -> None:
    hypothesis, expected = CASES[name]
    found = counts(hypothesis)
    assert tuple(found[key] for key in COLUMNS[:6]) == expected
    assert (found["valid"], found["length"]) == (1, 8)
    assert found["complete"] == (name in ("the same", "no tags", "function tags and TOP"))


@pytest.mark.parametrize(
    ("hypothesis", "kind"),
    [
        ("", "skipped"),
        ("(S)", "skipped"),
        (GOLD.replace("dog", "cat"), "error"),
        (GOLD.replace("(NN dog)", ""), "error"),
        (GOLD.replace("(. .)", "(XX .)"), "error"),  # deleted on one side only
        (GOLD + ")", "error"),
        (GOLD[:-1], "error"),
        (GOLD.replace("(DT the)", "the"), "error"),
        ("no tree at all", "error"),
    ],
)
def test_what_is_no_tree_over_these_words_is_counted_and_adds_nothing(hypothesis: str, kind: str) -> None:
    found = counts(hypothesis)
    assert found[kind] == found["sentences"] == 1
    assert not any(found[key] for key in COLUMNS if key not in (kind, "sentences", "length"))


def test_a_word_may_hold_white_space_that_is_not_asciis() -> None:
    assert counts(GOLD.replace("dog", "d\u2009og"), GOLD.replace("dog", "d\u2009og"))["words"] == 7


def test_a_quotation_mark_that_is_taken_for_a_possessive_is_put_back(tmp_path: Path) -> None:
    parameters = tmp_path / "quotes.prm"
    parameters.write_text("DELETE_LABEL ''\nQUOTE_LABEL ''\nQUOTE_LABEL POS\n")
    gold, test = (f"(S (NP (NNS boys) ({tag} ')) (VP (VBP run)))" for tag in ("POS", "''"))
    assert counts(test, gold)["error"] == 1
    found = counts(test, gold, parameters=str(parameters))
    assert (found["valid"], found["words"], found["matched"]) == (1, 3, 3)


def test_equal_words_and_labels_and_unlabelled_brackets_are_as_the_file_says(tmp_path: Path) -> None:
    parameters = tmp_path / "own.prm"
    parameters.write_text("# own\nEQ_WORD The the\nEQ_LABEL NP NX\nCUTOFF_LEN\t7\nDEBUG 0\n\n")
    found = counts(GOLD.replace("the", "The").replace("NP", "NX"), parameters=str(parameters))
    assert (found["matched"], found["test"], found["words"]) == (6, 6, 8)
    parameters.write_text("LABELED 0\n")
    metric = Evalb(parameters=str(parameters))
    assert counts(GOLD.replace("NP", "Q"), parameters=str(parameters))["matched"] == 6
    assert metric.signature(None).startswith("evalb:unlabelled|prm:own.prm-")


def test_a_length_limit_leaves_longer_sentences_out() -> None:
    metric = Evalb(max_length=7)  # of GOLD's eight, the full stop among them
    score, found = counted(metric, [GOLD, "(S (X a))"], [[GOLD, "(S (X a))"]], None)
    assert found.sum(1).tolist()[0] == 0
    assert (score.name, score.value) == ("F1, 7 words", 100)


def test_the_score_of_resamples_is_that_of_their_sums() -> None:
    metric, lines = Evalb(), [case[0] for case in CASES.values()]
    score, found = counted(metric, lines, [[GOLD] * len(lines)], None)
    drawn = np.random.default_rng(1).integers(len(lines), size=(13, 5))
    sums = found[drawn].sum(1)
    assert metric.value(sums).shape == (13,)
    recall, precision = (sums[:, 0] / sums[:, side] for side in (1, 2))
    np.testing.assert_allclose(metric.value(sums), 200 * precision * recall / (precision + recall))
    assert metric.value(np.zeros(len(COLUMNS))) == 0
    assert score.value == pytest.approx(200 * 32 / (36 + 37))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "DELETE_LABEL TOP\nDELETE_WORD x\n",
            "line 2, is none of an EVALB parameter file: DELETE_WORD x",
        ),
        ("EQ_LABEL ADVP\n", "line 1, is none of an EVALB parameter file: EQ_LABEL ADVP"),
        ("DELETE_LABEL\n", "line 1, is none of"),
        ("CUTOFF_LEN many\n", "line 1, is none of"),
    ],
)
def test_a_parameter_file_with_other_lines_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.prm").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_parameters(tmp_path / "wrong.prm")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("(S (X a)", "line 2 of the references: 1 brackets are not closed"),
        ("(S (X a)))", "line 2 of the references: a bracket is closed that was not opened"),
        ("(S (X a) b)", "line 2 of the references: 'b' is not a word with its tag in brackets"),
        ("", "line 2 of the references: it has no bracket"),
    ],
)
def test_a_reference_that_is_no_tree_is_refused(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        counted(Evalb(), ["(S (X a))"] * 2, [["(S (X a))", reference]], None)


def test_it_is_of_one_tree_for_each_sentence(in_process: CommandLine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="evalb counts against one tree for each sentence, got 2 references"):
        counted(Evalb(), [GOLD], [[GOLD], [GOLD]], None)
    (tmp_path / "a").write_text(f"{GOLD}\n")
    files = (f"hypotheses={tmp_path / 'a'}", f"references={tmp_path / 'a'}")
    assert in_process("task=score", "metrics=[evalb]", *files).stdout == (
        "F1 100.00 (evalb:labelled|prm:COLLINS|len:all)\n"
    )
    for wrong in (("format=evalb",), ("format=xml", "metrics=[evalb]")):
        assert "format must be null, or evalb with metrics=[evalb]" in in_process("task=score", *files, *wrong).stderr
    missing = in_process("task=score", "metrics=[evalb]", "metrics.evalb.parameters=nowhere.prm", *files).stderr
    assert "metrics.evalb.parameters=" in missing
    assert "does not exist" in missing
