"""Trees are read, written for a model and taken back whole; whatever else a model says becomes a tree."""

import gzip
import random
from pathlib import Path

import pytest

from aiayn.data.trees import cleaned, drawn, leaves, linearised, read_trees, tree_of
from aiayn.evaluation.metrics.evalb import COLUMNS, Evalb

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "treebank"
TREE = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))"
WORDS, TAGS = leaves(TREE)


def test_a_tree_is_written_without_its_words_and_taken_back() -> None:
    assert (" ".join(WORDS), TAGS[0]) == ("the dog sees a cat in town .", "DT")
    symbols = linearised(TREE, tags=True)
    assert symbols == "(S (NP DT NN )NP (VP VBZ (NP DT NN )NP (PP IN (NP NN )NP )PP )VP . )S"
    assert tree_of(symbols, WORDS) == (TREE, False)
    unlabelled = linearised(TREE, tags=False)
    assert unlabelled == "(S (NP XX XX )NP (VP XX (NP XX XX )NP (PP XX (NP XX )NP )PP )VP XX )S"
    assert tree_of(unlabelled, WORDS, TAGS) == (TREE, False)


def comes_back(raw: str) -> bool:
    """Whether a tree of a treebank, cleaned, survives being symbols."""
    tree = cleaned(raw)
    words, tags = leaves(tree)
    without = tree_of(linearised(tree, tags=False), words, tags)
    return "-NONE-" not in tags and tree_of(linearised(tree, tags=True), words) == without == (tree, False)


@pytest.mark.skipif(not CRAFT.is_dir(), reason="needs CRAFT's trees in ../shared/data/treebank")
@pytest.mark.parametrize(
    ("split", "count"),
    [
        ("dev", 1776),
        pytest.param("test", 3702, marks=pytest.mark.slow),
        pytest.param("train", 25352, marks=pytest.mark.slow),
    ],
)
def test_every_tree_of_a_treebank_comes_back(split: str, count: int) -> None:
    trees = list(read_trees(CRAFT / f"craft.{split}.tree.gz"))
    assert len(trees) == count
    assert [tree for tree in trees if not comes_back(tree)] == []


def test_every_tree_of_the_penn_treebanks_sample_comes_back() -> None:
    data = pytest.importorskip("nltk.data", reason="needs nltk, which has a sample of the Penn Treebank")
    try:
        folder = Path(data.find("corpora/treebank/combined"))
    except LookupError:
        pytest.skip("needs nltk's sample of the Penn Treebank: python -m nltk.downloader treebank")
    trees = [tree for file in sorted(folder.glob("*.mrg")) for tree in read_trees(file)]
    assert len(trees) == 3914
    assert [tree for tree in trees if not comes_back(tree)] == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("( (S (NP-SBJ-1 (DT a)) (VP=2 (VBZ b))) )", "(S (NP (DT a)) (VP (VBZ b)))"),
        ("(S (NP (-NONE- *T*-1)) (VP (VBZ b)))", "(S (VP (VBZ b)))"),
        ("( (S (NP (NN a))) (. .))", "(TOP (S (NP (NN a))) (. .))"),
        (
            "(S (ADVP|PRT (RB a)) (PRN (-LRB- -LRB-) (NN b) (-RRB- -RRB-)))",
            "(S (ADVP (RB a)) (PRN (-LRB- -LRB-) (NN b) (-RRB- -RRB-)))",
        ),
        ("(NP (NP (NN a)) (SBAR (-NONE- 0)))", "(NP (NP (NN a)))"),
        ("(S (-NONE- *))", ""),
        ("( (NN a))", "(TOP (NN a))"),
        ("( (NP (-NONE- *)) (NN a))", "(TOP (NN a))"),
        ("(X-LRB- (-LRB-SBJ (NN a-b)))", "(X (-LRB-SBJ (NN a-b)))"),
    ],
)
def test_function_tags_traces_and_what_is_empty_go(raw: str, expected: str) -> None:
    assert cleaned(raw) == expected
    assert not expected or comes_back(raw)


def test_to_evalb_a_tree_is_the_same_cleaned_or_not() -> None:
    raw = (
        "(S (S-TPC-1 (NP-SBJ=2 (NP (PRP it)) (SBAR (-NONE- *EXP*-3))) (VP (VBZ is) (ADVP (RB up)))) (, ,) (`` ``) "
        "(NP-SBJ (NN a) (-LRB- -LRB-) (QP ($ $) (CD 3\\/8)) (-NONE- *U*) (-RRB- -RRB-)) ('' '') "
        "(VP (VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))) (. .))"
    )
    found = dict(zip(COLUMNS, Evalb().counts([raw], [[cleaned(raw)]], None)[0].tolist(), strict=True))
    assert [found[key] for key in ("complete", "valid", "words", "tags")] == [1, 1, 9, 9]
    assert found["matched"] == found["gold"] == found["test"] == 9


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("", "(TOP (XX a) (XX b) (XX c))"),
        ("XX XX XX XX", "(TOP (XX a) (XX b) (XX c))"),
        ("(S XX", "(S (XX a) (XX b) (XX c))"),
        ("(S (NP XX", "(S (NP (XX a) (XX b) (XX c)))"),
        ("(S XX )S (S XX )S", "(TOP (S (XX a)) (S (XX b) (XX c)))"),
        ("(S (NP XX )NP )S XX", "(TOP (S (NP (XX a))) (XX b) (XX c))"),
        ("(S (NP XX (PP XX )NP XX )S", "(S (NP (XX a) (PP (XX b))) (XX c))"),
        ("(S (NP XX )VP )NP XX XX XX )S", "(S (NP (XX a)) (XX b) (XX c))"),
        ("(S (NP )NP XX XX XX )S", "(S (XX a) (XX b) (XX c))"),
        ("( ) )X (A (B XX XX (C )C XX )B )A", "(A (B (XX a) (XX b) (XX c)))"),
        ("(S -NONE- XX XX XX )S", "(S (XX a) (XX b) (XX c))"),
    ],
)
def test_symbols_that_are_no_tree_are_mended_by_rule(symbols: str, tree: str) -> None:
    assert tree_of(symbols, ["a", "b", "c"]) == (tree, True)


def test_whatever_stands_where_a_word_should_is_that_word() -> None:
    assert tree_of("(S XX dog )S", ["a", "b"], ["DT", "NN"]) == ("(S (DT a) (NN b))", True)
    assert tree_of("(S DT dog )S", ["a", "b"]) == ("(S (DT a) (dog b))", False)  # any word may be a tag


def test_whatever_is_said_becomes_a_tree_over_the_words() -> None:
    random_ = random.Random(1)
    symbols = ["(S", ")S", "(NP", ")NP", "(VP", ")VP", "XX", "DT", "(", ")", "x(y", "))", "-NONE-"]
    mended = 0
    for _ in range(2000):
        words = [f"w{number}" for number in range(random_.randint(1, 7))]
        said = " ".join(random_.choices(symbols, k=random_.randint(0, 20)))
        tree, was_mended = tree_of(said, words)
        assert leaves(tree)[0] == words
        assert cleaned(tree) == tree  # no empty bracket, one root
        assert tree_of(linearised(tree, tags=True), words) == (tree, False)
        assert was_mended or linearised(tree, tags=True) == said
        mended += was_mended
    assert mended > 1900


def test_a_deep_tree_is_no_deeper_than_python_can_go() -> None:
    symbols = " ".join(["(X"] * 5000 + ["XX"] + [")X"] * 5000)
    tree, mended = tree_of(symbols, ["a"])
    assert (tree.count("(X"), mended) == (5001, False)


def test_a_file_has_a_tree_a_line_or_over_several(tmp_path: Path) -> None:
    pretty = "\n( (S \n    (NP-SBJ (NNP Ann) )\n    (VP (VBZ sleeps) )\n    (. .) ))\n(S (NN a))\n\n(S\n(NN b\u2009c))"
    for name, write in (
        ("a.mrg", Path.write_text),
        ("b.gz", lambda file, text: file.write_bytes(gzip.compress(text.encode()))),
    ):
        write(tmp_path / name, pretty)
        assert list(read_trees(tmp_path / name)) == [
            "( (S (NP-SBJ (NNP Ann)) (VP (VBZ sleeps)) (. .)))",
            "(S (NN a))",
            "(S (NN b\u2009c))",
        ]


def test_a_word_may_stand_in_another_line_than_its_tag(tmp_path: Path) -> None:
    """As nltk and others print trees that are wider than a page."""
    (tmp_path / "a.mrg").write_text("(S\n  (NNP\n    Ann)\n  (VP (VBZ sleeps\n)\n)\n) (S (NN b)) (S (NN\nc))\n")
    assert list(read_trees(tmp_path / "a.mrg")) == ["(S (NNP Ann) (VP (VBZ sleeps)))", "(S (NN b))", "(S (NN c))"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("(S (NN a))\n(S (NN b)\n(S (NN c))\n", "line 2: 1 brackets of the tree that begins here are not closed"),
        ("(S (NN a))\n(S (NN b)))\n", "line 2: a bracket is closed that was not opened"),
        ("(S (NN a))\n\n(S (NP a b))\n", "line 3: a is no word with its tag"),
        ("(S (NN a))\nword\n", "line 2: word is no word with its tag"),
        ("(S (NP))\n", "line 1: a bracket is empty"),
        ("\n(S\n)\n", "line 2: a bracket is empty"),
        ("(S (NN a)\n(NP (NN\n)))\n", "line 2: a bracket is empty"),
        ("(S (NN a) (-LRB- () (-RRB- )))\n", "line 1: a bracket is empty; .* -LRB- and -RRB-"),
        ("(S (NN a))\n(S (NN (b)))\n", "line 2: a bracket is empty"),
        ("(S ( a))\n", "line 1: a is no word with its tag"),
        ("(NN a)\n", "line 1: .* is a word outside of a tree"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.mrg").write_text(content)
    with pytest.raises(ValueError, match=rf"x\.mrg, {message}"):
        list(read_trees(tmp_path / "x.mrg"))


def test_a_tree_is_drawn_with_its_brackets_below_each_other() -> None:
    assert drawn(TREE).splitlines() == [
        "(S",
        "  (NP (DT the) (NN dog))",
        "  (VP (VBZ sees)",
        "    (NP (DT a) (NN cat))",
        "    (PP (IN in)",
        "      (NP (NN town))))",
        "  (. .))",
    ]
