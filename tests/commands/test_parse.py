"""task=parse and `Translator.parse`: a tree for each line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import CommandLine

from aiayn.commands import parse as command
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.data.trees import leaves
from aiayn.evaluation.metrics.evalb import COLUMNS, Evalb
from aiayn.inference.beam_search import Hypothesis
from aiayn.inference.translation import Translator

SYMBOLS = ["(NP", "(S", ")NP", ")S", "XX"]


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    lines = ["a dog sleeps", "-LRB- a cat -RRB-", " ".join(SYMBOLS)]
    return Vocabularies.joint(Tokenizer.train(lines, vocab_size=50, symbols=SYMBOLS))


def parser(vocabularies: Vocabularies, said: str = "(S (NP XX XX )NP XX )S") -> Translator:
    """Says the same of every sentence."""

    def decode(sources: Any, **_: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(vocabularies.target.encode([said])[0].tolist(), 0.0, 0.0)] for _ in sources]

    return Translator(vocabularies, decode)


def test_every_sentence_has_a_tree_over_its_words(vocabularies: Vocabularies) -> None:
    found = parser(vocabularies).parse(["a  dog sleeps", "", "(a)", "a b c d"])
    assert found == [
        "(S (NP (XX a) (XX dog)) (XX sleeps))",
        "",
        "(S (NP (XX -LRB-a-RRB-)))",
        "(S (NP (XX a) (XX b)) (XX c) (XX d))",
    ]
    assert [leaves(tree)[0] for tree in found[:1]] == [["a", "dog", "sleeps"]]


def test_punctuation_has_its_tag_so_that_evalb_leaves_it_out_in_both_trees(vocabularies: Vocabularies) -> None:
    gold = "(S (NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-)) (, ,) (. ?))"
    [tree] = parser(vocabularies, "(S (NP XX XX XX )NP XX XX )S").parse(["( a ) , ?"])
    assert tree == gold.replace("NN", "XX")
    counts = dict(zip(COLUMNS, Evalb().counts([tree], [[gold]], None)[0].tolist(), strict=True))
    assert [counts[key] for key in ("error", "complete", "words")] == [0, 1, 3]


def test_tags_that_were_learned_stay() -> None:
    symbols = ["(S", ")S", "DT", "."]
    lines = ["a dog ,", " ".join(symbols)]
    learned = Vocabularies.joint(Tokenizer.train(lines, vocab_size=22, symbols=symbols))
    assert parser(learned, "(S DT DT . )S").parse(["a dog ,"]) == ["(S (DT a) (DT dog) (. ,))"]


def test_a_model_of_no_trees_does_not_parse() -> None:
    plain = Vocabularies.joint(Tokenizer.train(["a ( b ) c (d) e"], vocab_size=14))
    with pytest.raises(ValueError, match="was trained on no trees, so it cannot parse; give a run of problem=parsing"):
        parser(plain, "a").parse(["a b"])


def test_one_string_and_a_sentence_of_two_lines_are_refused(vocabularies: Vocabularies) -> None:
    with pytest.raises(ValueError, match="sentences must be a list"):
        parser(vocabularies).parse("a dog")
    with pytest.raises(ValueError, match="sentence 1 has a line feed inside"):
        parser(vocabularies).parse(["a\ndog"])


def test_lines_become_trees_or_drawings(
    vocabularies: Vocabularies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: CommandLine
) -> None:
    loaded = SimpleNamespace(vocabularies=vocabularies, config={"inference": {}})
    monkeypatch.setattr(command, "open_with", lambda *_, **__: (loaded, None))
    monkeypatch.setattr(command, "translator", lambda *_, **__: parser(vocabularies))
    monkeypatch.setattr(command, "checkpoint_files", lambda value: [])
    source = tmp_path / "in.txt"
    source.write_text("a dog sleeps\n\na cat sleeps\n")
    ask = ("task=parse", f"checkpoint={source}", f"input={source}", "window=2")
    assert in_process(*ask).stdout == ("(S (NP (XX a) (XX dog)) (XX sleeps))\n\n(S (NP (XX a) (XX cat)) (XX sleeps))\n")
    assert in_process(*ask, "format=pretty").stdout.startswith("(S\n  (NP (XX a) (XX dog))\n  (XX sleeps))\n\n(S\n")
    assert in_process(*ask, f"output={tmp_path / 'out'}").stdout == ""
    assert (tmp_path / "out").read_text().count("\n") == 3
    wrong = in_process(*ask, "format=xml")
    assert (wrong.returncode, wrong.stderr) == (1, "error: format must be text or pretty, got xml.\n")
