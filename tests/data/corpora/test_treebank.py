"""Trees of files, or of a folder with the Penn Treebank's sections, are pairs of a sentence and its symbols."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from aiayn.data.corpora.treebank import SPLITS, Treebank
from aiayn.data.trees import leaves, linearised, tree_of

SECTIONS = {"train": [2, 21], "dev": [22, 22], "test": [23, 23]}
CRAFT = Path(__file__).parents[4] / "shared" / "data" / "treebank"
# Invented, in the layout of the Penn Treebank's files.
PRETTY = """
( (S
    (NP-SBJ-1 (DT the) (NNP {word}) )
    (PRN
      (, ,)
      (SINV
        (VP (VBD said)
          (SBAR (-NONE- 0)
            (S (-NONE- *T*-2) )))
        (NP-SBJ (PRP she) ))
      (, ,) )
    (VP (VBZ costs)
      (NP
        (QP ($ $) (CD 3\\/8) )
        (-NONE- *U*) )
      (PRN (-LRB- -LRB-) (NP (NN cash)) (-RRB- -RRB-) ))
    (. .) ))
( (S (NP-SBJ (-NONE- *)) (VP (-NONE- *?*))))
( (FRAG (NP (NN end)) ('' '') ))
"""


def treebank(**files: Any) -> Treebank:
    return Treebank(path=None, sections=SECTIONS, files={split: files.get(split) for split in SPLITS})


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    """A folder as the Penn Treebank's wsj, each word the section and file that it is of."""
    for section in range(25):
        folder = tmp_path / "wsj" / f"{section:02}"
        folder.mkdir(parents=True)
        for number in (3, 1):
            (folder / f"wsj_{section:02}{number:02}.mrg").write_text(f"\n( (NP (CD {section}-{number}) ))\n")
        for name in ("readme.txt", f"wsj_{section:02}01.mrg~"):
            (folder / name).write_text("no tree")
    return tmp_path / "wsj"


def test_a_sentence_is_its_words_and_its_tree_the_symbols(tmp_path: Path) -> None:
    (tmp_path / "a.mrg").write_text(PRETTY.format(word="Bond"))
    (tmp_path / "b.gz").write_bytes(gzip.compress(PRETTY.format(word="Stock").encode()))
    corpus = treebank(train=[str(tmp_path / "a.mrg"), str(tmp_path / "b.gz")], dev=tmp_path / "a.mrg")
    assert corpus.splits() == ["train", "dev"]
    pairs = list(corpus.pairs("train"))
    assert len(pairs) == 4  # what is a trace alone is no sentence
    assert pairs[0] == (
        "the Bond , said she , costs $ 3\\/8 -LRB- cash -RRB- .",
        "(S (NP XX XX )NP (PRN XX (SINV (VP XX )VP (NP XX )NP )SINV XX )PRN "
        "(VP XX (NP (QP XX XX )QP )NP (PRN XX (NP XX )NP XX )PRN )VP XX )S",
    )
    assert [source.split()[1] for source, _ in pairs] == ["Bond", "''", "Stock", "''"]
    assert list(corpus.pairs("dev")) == pairs[:2]


@pytest.mark.parametrize("tags", [False, True])
def test_the_symbols_of_train_are_all_that_its_trees_are_made_of(tmp_path: Path, tags: bool) -> None:
    (tmp_path / "a.mrg").write_text(PRETTY.format(word="Bond"))
    (tmp_path / "b.mrg").write_text("(UCP (UH oh))")
    corpus = Treebank(
        path=None, sections=SECTIONS, files={"train": tmp_path / "a.mrg", "dev": tmp_path / "b.mrg"}, tags=tags
    )
    symbols = corpus.symbols()
    assert symbols == sorted({symbol for _, target in corpus.pairs("train") for symbol in target.split()})
    assert {"(QP", ")FRAG"} < set(symbols)
    assert "(UCP" not in symbols
    assert ({"''", ",", "$", "-LRB-"} < set(symbols), "XX" in symbols) == (tags, not tags)


def test_the_penn_treebanks_sections_are_those_of_everyone(sections: Path) -> None:
    corpus = Treebank(path=str(sections), sections=SECTIONS, files=dict.fromkeys(SPLITS))
    assert corpus.splits() == ["train", "dev", "test"]
    expected = {"train": range(2, 22), "dev": [22], "test": [23]}
    for split, parts in expected.items():
        found = [leaves(tree)[0] for tree in corpus.trees(split)]
        assert found == [[f"{part}-{number}"] for part in parts for number in (1, 3)]


def test_files_that_are_named_come_before_the_folder(sections: Path) -> None:
    files = {"train": sections / "00" / "wsj_0001.mrg", "dev": None, "test": None}
    corpus = Treebank(path=sections, sections=SECTIONS, files=files)
    assert (corpus.splits(), list(corpus.trees("train"))) == (["train"], ["(NP (CD 0-1))"])


def test_a_corpus_is_known_by_contents_and_not_by_names(tmp_path: Path) -> None:
    for name, word in (("a", "Bond"), ("b", "Bond"), ("c", "Stock")):
        (tmp_path / name).write_text(PRETTY.format(word=word))
    a, b, c = (treebank(train=tmp_path / name, dev=tmp_path / "a").fingerprint() for name in "abc")
    assert a == b != c
    files = {"train": tmp_path / "a", "dev": tmp_path / "a"}
    assert Treebank(path=None, sections=SECTIONS, files=files, tags=True).fingerprint() != a


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, sections: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path=None is no folder of a treebank's sections, and data\.trees"):
        treebank()
    with pytest.raises(ValueError, match=r"data\.path=.*/nowhere is no folder of a treebank's sections"):
        Treebank(path=tmp_path / "nowhere", sections=SECTIONS, files={})
    corpus = treebank(train=[tmp_path / "gone.mrg"], dev=tmp_path / "empty.mrg")
    with pytest.raises(ValueError, match=r"data\.trees\.train=.*gone\.mrg is not a file"):
        list(corpus.pairs("train"))
    with pytest.raises(ValueError, match=r"data\.split=test does not exist: this corpus has train, dev"):
        list(corpus.pairs("test"))
    (tmp_path / "empty.mrg").write_text("\n(S (NP (-NONE- *)))\n")
    with pytest.raises(ValueError, match=r"data\.trees\.dev is empty: there is no tree in .*empty\.mrg"):
        list(corpus.pairs("dev"))
    for file in (sections / "22").glob("*.mrg"):
        file.unlink()
    with pytest.raises(ValueError, match=r"has no \*\.mrg file in the sections 22 to 22, dev"):
        list(Treebank(path=sections, sections=SECTIONS, files={}).pairs("dev"))


@pytest.mark.skipif(not CRAFT.is_dir(), reason="needs CRAFT's trees in ../shared/data/treebank")
def test_craft_is_a_treebank() -> None:
    corpus = treebank(**{split: CRAFT / f"craft.{split}.tree.gz" for split in SPLITS})
    pairs, trees = list(corpus.pairs("dev")), list(corpus.trees("dev"))
    assert len(pairs) == 1776
    for (source, target), tree in zip(pairs, trees, strict=True):
        words, tags = leaves(tree)
        assert source == " ".join(words)
        assert target == linearised(tree, tags=False)
        assert tree_of(target, words, tags) == (tree, False)
