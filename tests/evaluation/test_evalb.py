"""The metric of parse trees is EVALB: its figures, its report, its parameter files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine, composed
from hydra.utils import instantiate

from aiayn.evaluation.evalb_parameters import Parameters, read_parameters
from aiayn.evaluation.evalb_report import report
from aiayn.evaluation.metric import counted
from aiayn.evaluation.metrics.evalb import COLUMNS, Evalb

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "evalb"
needs_sample = pytest.mark.skipif(not SAMPLE.is_dir(), reason="needs EVALB's sample in ../shared/data/evalb")
GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))"
SHORT = "(S (NP (PRP it)) (VP (VBD was)))"


def lines_of(name: str) -> list[str]:
    return (SAMPLE / name).read_text().split("\n")[:-1]


def printed(metric: Evalb, hypotheses: list[str], references: list[str]) -> tuple[str, list[str]]:
    """The report, and the messages."""
    found = list(report(metric, hypotheses, [references]))
    return "".join(f"{line}\n" for line, is_message in found if not is_message), [
        line for line, is_one in found if is_one
    ]


def counts(hypothesis: str, reference: str = GOLD, **parameters: Any) -> dict[str, int]:
    row = counted(Evalb(parameters), [hypothesis], [[reference]], None)[1][0]
    return dict(zip(COLUMNS, row.tolist(), strict=True))


@needs_sample
def test_the_report_of_evalbs_sample_is_evalbs_own(in_process: CommandLine) -> None:
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


# What EVALB prints of the same with COLLINS.prm, where that differs: the rows of two sentences, totals, and summaries.
WITH_COLLINS = """\
  18    4    0  100.00 100.00     4      4    4      0      4     3    75.00
  19    4    1    0.00   0.00     0      0    0      0      0     0     0.00
                 87.23  90.11     82    94    91      1    104   101    97.12
Number of Error sentence  =      6
Number of Valid sentence  =     16
Bracketing Recall         =  87.23
Bracketing Precision      =  90.11
Bracketing FMeasure       =  88.65
Complete match            =  50.00
No crossing               =  93.75
Tagging accuracy          =  97.12
Number of Error sentence  =      6
Number of Valid sentence  =     15
Bracketing Recall         =  80.00
Bracketing Precision      =  84.21
Bracketing FMeasure       =  82.05
Complete match            =  46.67
Average crossing          =   0.07
No crossing               =  93.33
Tagging accuracy          =  95.00
"""


@needs_sample
def test_the_config_is_the_file_that_papers_use() -> None:
    chosen = instantiate(composed("metrics=[evalb,evalb_40]").metrics)
    assert chosen["evalb"].parameters == read_parameters(SAMPLE / "COLLINS.prm")
    hypotheses, references = lines_of("sample.tst"), lines_of("sample.gld")
    text, messages = printed(chosen["evalb"], hypotheses, references)
    theirs = (SAMPLE / "sample.rsl").read_text().splitlines()
    ours = text.splitlines()
    assert len(ours) == len(theirs)
    assert [line for line, other in zip(ours, theirs, strict=True) if line != other] == WITH_COLLINS.splitlines()
    assert messages[4] == "19 : Words unmatch (this|This)"
    assert counted(chosen["evalb"], hypotheses, [references], None)[0].shown == "F1 88.65"
    assert counted(chosen["evalb_40"], hypotheses, [references], None)[0].shown == "F1, 40 words 82.05"


def test_the_configs_parameters_are_those_without_one() -> None:
    chosen = instantiate(composed("metrics=[evalb,evalb_40]").metrics)
    assert chosen["evalb"].parameters == chosen["evalb_40"].parameters == Parameters()


PARAMETERS = """\
# EVALB's own names of all that it knows
DEBUG 0
MAX_ERROR 10
LABELED 1   \t
CUTOFF_LEN\t4
DELETE_LABEL TOP
DELETE_LABEL -NONE-
DELETE_LABEL .
DELETE_LABEL ''
DELETE_LABEL_FOR_LENGTH -NONE-
QUOTE_LABEL ''
QUOTE_LABEL POS
EQ_LABEL ADVP PRT
EQ_WORD The the
"""
# References, each above its hypothesis.
PAIRS = r"""
(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))
(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat) (PP (IN in) (NP (NN town))))) (. .))
(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))
(S (NP (DT the) (NN dog) (X (VBZ sees))) (Y (DT a) (Z (NN cat) (PP (IN in))) (NP (NN town))) (. .))
(NP (NP (NP (DT the) (NN dog))))
(NP (NP (DT the) (NN dog)))
(NP (DT the) (NN dog))
(NP (NP (NP (DT The) (NN dog))))
(TOP (S-TPC=2 (NP-SBJ (PRP it)) (VP (VBD ran) (PRT (RP off)))))
(S (NP (PRP it)) (VP (VBD ran) (ADVP-DIR (PRT off))))
(S (NP (PRP it)) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *)))) (. .))
( (S (NP (PRP it)) (VP (VBD was) (VP (VBN seen))) (. .)))
(S (NP (PRP it)) (VP (VBD was) (: -)))
(S (NP (PRP it)) (VP (VBD was) (. -)))
(S (NP (PRP it)) (VP (VBD was)))
(S (NP (PRP it)) (VP (VBD is)))
(S (NP (PRP it)) (VP (VBD was)))

(S (NP (PRP it)) (VP (VBD was)))
(S (NP (PRP it)) (VP (VBD was))
(S (NP (PRP it)) (VP (VBD was)))
(S (NP (PRP it)) (VP (VBD was))))
(S (NP (PRP it)) (VP (VBD was)))
(S (NP (PRP it)) (VP (VBD was)))))
(S (NP (PRP it)) (VP (VBD was)))
(NP (PRP it)) (VP (VBD was))
(S (NP (PRP it)) (VP (VBD was) (NP )))
(S (NP (PRP it)) (VP (VBD was) (NP)))
(S (NP (NNS boys) (POS ')) (VP (VBP run)))
(S (NP (NNS boys) ('' ')) (VP (VBP run)))
(. .)
(. .)
""".removeprefix("\n").splitlines()
# What EVALB prints for them, compiled from Flupp/evalb:evalb.c.
MESSAGES = [
    "7 : Length unmatch (3|2)",
    "8 : Words unmatch (was|is)",
    "10 : Bracketing is unbalanced (too many open bracket)",
    "11 : Bracketing is unbalanced (too many open bracket)",
    "12 : Bracketing unbalance (too many close bracket)",
    "12 : Bracketing is unbalanced (too many open bracket)",
    "14 : Length unmatch (3|2)",
]
REPORT = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
============================================================================
   1    8    0   83.33  83.33     5      6    6      0      7     7   100.00
   2    8    0   33.33  28.57     2      6    7      2      7     7   100.00
   3    2    0   66.67 100.00     2      3    2      0      2     2   100.00
   4    2    0  100.00  33.33     1      1    3      0      2     2   100.00
   5    3    0  100.00 100.00     4      4    4      0      3     2    66.67
   6    4    0  100.00  80.00     4      4    5      0      3     3   100.00
   7    3    1    0.00   0.00     0      0    0      0      0     0     0.00
   8    2    1    0.00   0.00     0      0    0      0      0     0     0.00
   9    2    2    0.00   0.00     0      0    0      0      0     0     0.00
  10    2    1   66.67  66.67     2      3    3      0      2     2   100.00
  11    2    1  100.00 100.00     3      3    3      0      2     2   100.00
  12    2    1  100.00 100.00     3      3    3      0      2     2   100.00
  13    2    0   66.67 100.00     2      3    2      0      2     2   100.00
  14    3    1    0.00   0.00     0      0    0      0      0     0     0.00
  15    3    0  100.00 100.00     3      3    3      0      3     2    66.67
  16    1    2    0.00   0.00     0      0    0      0      0     0     0.00
============================================================================
                 76.67  71.88     23    30    32      2     29    27    93.10
=== Summary ===

-- All --
Number of sentence        =     16
Number of Error sentence  =      6
Number of Skip  sentence  =      2
Number of Valid sentence  =      8
Bracketing Recall         =  76.67
Bracketing Precision      =  71.88
Bracketing FMeasure       =  74.19
Complete match            =  25.00
Average crossing          =   0.25
No crossing               =  87.50
2 or less crossing        = 100.00
Tagging accuracy          =  93.10

-- len<=4 --
Number of sentence        =     14
Number of Error sentence  =      6
Number of Skip  sentence  =      2
Number of Valid sentence  =      6
Bracketing Recall         =  88.89
Bracketing Precision      =  84.21
Bracketing FMeasure       =  86.49
Complete match            =  33.33
Average crossing          =   0.00
No crossing               = 100.00
2 or less crossing        = 100.00
Tagging accuracy          =  86.67
"""


@pytest.fixture
def own(tmp_path: Path) -> Evalb:
    """With all directives that a parameter file may have."""
    (tmp_path / "own.prm").write_text(PARAMETERS)
    return Evalb(str(tmp_path / "own.prm"))


def test_the_report_of_what_is_strange_in_evalb_is_evalbs_own(own: Evalb) -> None:
    assert printed(own, PAIRS[1::2], PAIRS[::2]) == (REPORT, MESSAGES)


def test_the_score_and_its_counts_are_those_of_the_report(own: Evalb, caplog: pytest.LogCaptureFixture) -> None:
    score, found = counted(own, PAIRS[1::2], [PAIRS[::2]], None)
    sums = dict(zip(COLUMNS, found.sum(0).tolist(), strict=True))
    assert score.shown == "F1 74.19"
    assert list(sums.values()) == [23, 30, 32, 2, 29, 27, 2, 7, 8, 8, 6, 2, 16]
    assert score.signature == (
        "evalb:labelled|deleted:'' -NONE- . TOP|deleted_for_length:-NONE-|quotes:'' POS|equal_labels:ADVP=PRT|"
        "equal_words:The=the|words:all"
    )
    [record] = caplog.records
    assert record.getMessage().startswith("F1 leaves out 8 of 16 sentences, as EVALB does: 6 errors")


def test_errors_and_skipped_sentences_add_nothing_but_their_number(own: Evalb) -> None:
    found = counted(own, PAIRS[1::2], [PAIRS[::2]], None)[1]
    left_out = found[found[:, -3:-1].any(1)]
    assert left_out.sum(0).tolist() == [0] * 10 + [6, 2, 8]


def test_a_summary_without_a_match_has_evalbs_nan() -> None:
    text, _ = printed(Evalb(), [SHORT.replace("was", "is")], [SHORT])
    lines = text.splitlines()
    assert lines[5] == "      0     0     0.00"  # without brackets there is no more
    assert lines[15] == lines[29] == "Bracketing FMeasure       =    nan"
    assert Evalb().value(np.zeros(len(COLUMNS))) == 0


@pytest.mark.parametrize(
    ("hypothesis", "message", "kind"),
    [
        ("no tree at all", "Reading sentence", "skipped"),
        ("(S (NP", "Bracketing is unbalanced (too many open bracket)", "skipped"),
        (SHORT.replace("(NP (PRP it))", "it"), "Reading sentence", "error"),
        (SHORT.replace("(PRP it)", "(PRP it it)"), "Reading sentence", "error"),
        (f"{SHORT} it", "Reading sentence", "error"),
    ],
)
def test_a_hypothesis_at_which_evalb_stops_is_counted(hypothesis: str, message: str, kind: str) -> None:
    found = counts(hypothesis, SHORT)
    assert [key for key, number in found.items() if number] == [kind, "sentences"]
    assert printed(Evalb(), [hypothesis], [SHORT])[1][0] == f"1 : {message}"


def test_identical_trees_have_the_best_score() -> None:
    trees = [GOLD, SHORT, *PAIRS[::2][:-1]]
    score, found = counted(Evalb(), trees, [trees], None)
    sums = dict(zip(COLUMNS, found.sum(0).tolist(), strict=True))
    assert score.value == 100
    assert sums["complete"] == sums["no_crossing"] == sums["two_crossing"] == sums["sentences"] == len(trees)
    assert (sums["tags"], sums["crossing"]) == (sums["words"], 0)


def test_brackets_cross_to_either_side_and_each_of_the_output_counts_once() -> None:
    # EVALB's figures.
    left, right = ("(S (A (X a) (X b)) (X c) (X d))", "(S (X a) (A (X b) (A (X c))) (A (X d)))")
    assert counts(left, right)["crossing"] == 1
    assert counts(right, left)["crossing"] == 1
    assert counts(right, left.replace("(X c) (X d)", "(B (X c) (X d))"))["crossing"] == 1


def test_a_label_that_equals_one_that_does_not_count_does_not_count_either() -> None:
    found = counts(
        "(S (NX (X a)) (NP (X b)))", "(S (NP (X a)) (NX (X b)))", deleted=["NX"], equal_labels=[["NP", "NX"]]
    )
    assert (found["gold"], found["test"], found["words"]) == (1, 1, 2)


def test_a_word_may_hold_white_space_that_is_not_asciis() -> None:
    assert counts(GOLD.replace("dog", "d\u2009og"), GOLD.replace("dog", "d\u2009og"))["words"] == 7


def test_unlabelled_brackets_need_no_equal_labels() -> None:
    assert counts(GOLD.replace("NP", "Q"))["matched"] == 3
    assert counts(GOLD.replace("NP", "Q"), labelled=False)["matched"] == 6
    assert Evalb({"labelled": False}).signature(None).startswith("evalb:unlabelled|deleted:")


def test_a_length_limit_leaves_longer_sentences_out() -> None:
    metric = Evalb(max_length=7)  # of GOLD's eight, the full stop among them
    score, found = counted(metric, [SHORT.replace("VP", "X"), GOLD], [[SHORT, GOLD]], None)
    assert not found[1].any()
    assert (score.shown, score.signature[-9:]) == ("F1, 7 words 66.67", "words:<=7")
    assert counted(Evalb(max_length=8), [GOLD], [[GOLD]], None)[1].any()


def test_the_score_of_resamples_is_that_of_their_sums(own: Evalb) -> None:
    found = counted(own, PAIRS[1::2], [PAIRS[::2]], None)[1]
    sums = found[np.random.default_rng(1).integers(len(found), size=(13, 11, 5))].sum(2)
    matched, gold, test = (sums[..., column] for column in range(3))
    assert own.value(sums).shape == (13, 11)
    with np.errstate(invalid="ignore"):
        recall, precision = matched / gold, matched / test
        expected = np.nan_to_num(200 * precision * recall / (precision + recall))
    np.testing.assert_allclose(own.value(sums), expected)


def test_a_file_takes_the_place_of_all_parameters(tmp_path: Path) -> None:
    (tmp_path / "few.prm").write_text("\nEQ_LABEL NP NX\nLABELED 0\n")
    read = instantiate(composed("metrics=[evalb]", f"metrics.evalb.parameters={tmp_path / 'few.prm'}").metrics)["evalb"]
    assert str(read.parameters) == "unlabelled|equal_labels:NP=NX"
    (tmp_path / "few.prm").unlink()
    assert instantiate({"_target_": "aiayn.evaluation.metrics.evalb.Evalb", "parameters": "gone.prm"}).value(
        np.ones(len(COLUMNS))
    ) == pytest.approx(100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("DELETE_LABEL TOP\nDELETE_WORD x\n", "line 2, must begin with one of DELETE_LABEL, .*, got 'DELETE_WORD x'"),
        ("\n DELETE_LABEL TOP\n", "line 2, must begin with one of DELETE_LABEL"),
        ("DELETE_LABEL TOP S1\n", "line 1: DELETE_LABEL takes one label, got TOP S1"),
        ("QUOTE_LABEL\n", "line 1: QUOTE_LABEL takes one label, got nothing"),
        ("EQ_LABEL ADVP\n", "line 1: EQ_LABEL takes two values, got ADVP"),
        ("EQ_WORD a b c\n", "line 1: EQ_WORD takes two values, got a b c"),
        ("CUTOFF_LEN many\n", "line 1: CUTOFF_LEN takes a whole number, got many"),
        ("MAX_ERROR 1 2\n", "line 1: MAX_ERROR takes a whole number, got 1 2"),
    ],
)
def test_a_parameter_file_with_other_lines_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.prm").write_text(content)
    with pytest.raises(ValueError, match=rf"metrics.evalb.parameters=.*wrong.prm, {message}"):
        Evalb(str(tmp_path / "wrong.prm")).signature(None)


def test_a_parameter_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin1.prm").write_bytes(b"DELETE_LABEL \xe9\n")
    for path in (tmp_path, tmp_path / "latin1.prm", tmp_path / "gone.prm"):
        with pytest.raises(ValueError, match=r"metrics.evalb.parameters=.* cannot be read"):
            read_parameters(path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"deletd": ["TOP"]},
            "metrics.evalb.parameters.deletd is none of EVALB's parameters; there are labelled, cutoff",
        ),
        ({"deleted": "TOP"}, "parameters.deleted must be a list of labels"),
        ({"quotes": [1]}, "parameters.quotes must be a list of labels"),
        ({"equal_labels": ["AB"]}, "parameters.equal_labels must be a list of pairs"),
        ({"equal_words": [["a", "b", "c"]]}, "parameters.equal_words must be a list of pairs"),
        ({"labelled": 1}, "parameters.labelled must be true or false, got 1"),
        ({"cutoff": "40"}, "parameters.cutoff must be a whole number, got '40'"),
        (None, "parameters must be a parameter file of EVALB, or what is in one, got None"),
    ],
)
def test_parameters_of_another_kind_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evalb(parameters)


def test_a_length_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        Evalb(max_length=0)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("(S (X a)", "brackets that are not closed: 1"),
        ("(S (X a)))", "a bracket is closed that was not opened"),
        ("(S (X a)) b", "'b' is no word with its tag in brackets"),
        ("(S (X a b))", "'a' is no word with its tag in brackets"),
        ("", "it has no word"),
        ("(S (X))", "it has no word"),
    ],
)
def test_a_reference_that_is_no_tree_is_refused(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"line 2 of the references is no tree: {message}"):
        counted(Evalb(), [SHORT] * 2, [[SHORT, reference]], None)


def test_scores_are_printed_and_the_report_only_where_it_is_asked_for(in_process: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "gold").write_text(f"{SHORT}\n{SHORT}\n")
    (tmp_path / "test").write_text(SHORT + "\n" + SHORT.replace("was", "is\x1b[2J") + "\n")
    files = (f"hypotheses={tmp_path / 'test'}", f"references={tmp_path / 'gold'}")
    done = in_process("task=score", "metrics=[evalb,evalb_40]", *files)
    assert [line.split(" (evalb:labelled|deleted:")[0] for line in done.stdout.splitlines()] == [
        "F1 100.00",
        "F1, 40 words 100.00",
    ]
    assert done.stderr.count("leaves out 1 of 2 sentences, as EVALB does") == 2
    done = in_process("task=score", "metrics=[evalb]", "format=evalb", f"output={tmp_path / 'new.json'}", *files)
    assert "Number of Error sentence  =      1" in done.stdout
    assert "F1 100.00" not in done.stdout
    assert r"2 : Words unmatch (was|is\x1b[2J)" in done.stderr
    assert '"value": 100.0' in (tmp_path / "new.json").read_text()
