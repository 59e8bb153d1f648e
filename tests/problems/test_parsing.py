"""Parsing is translation into symbols of which trees are made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import composed
from omegaconf import OmegaConf

from aiayn.commands.inputs import metric_options
from aiayn.data.tokenizer import Tokenizer
from aiayn.data.trees import leaves, linearised
from aiayn.evaluation.metrics.evalb import Evalb
from aiayn.evaluation.metrics.mended import Mended
from aiayn.problems.parsing import Parsing
from aiayn.problems.problem import problem_of


def parsing(*overrides: str) -> Parsing:
    small = ("data.corpus.trees=30", "data.corpus.dev=7", "data.corpus.test=5")
    problem = problem_of(composed("data=treebank_generated", *small, *overrides))
    assert isinstance(problem, Parsing)
    return problem


@pytest.mark.parametrize("tags", [False, True])
def test_the_symbols_of_a_tree_become_the_tree(tags: bool) -> None:
    problem = parsing(f"data.tags={tags}")
    sentences, symbols = problem.text("dev")
    trees = problem.references("dev")
    assert [" ".join(leaves(tree)[0]) for tree in trees] == sentences
    assert symbols == [linearised(tree, tags=tags) for tree in trees]
    assert problem.outputs("dev", symbols) == trees
    assert problem.outputs("dev", symbols[1::3], slice(1, None, 3)) == trees[1::3]  # a replica's share
    score, counts = problem.counted(Evalb(), symbols, problem.outputs("dev", symbols), trees)
    assert (score.value, len(counts)) == (100, 7)


def test_what_is_no_tree_is_mended_and_counted() -> None:
    problem = parsing()
    decoded = list(problem.text("dev")[1])
    decoded[2], decoded[4] = "", f" {decoded[4]}  )S"
    outputs, trees = problem.outputs("dev", decoded), problem.references("dev")
    score, counts = problem.counted(Mended(), decoded, outputs, trees)
    assert counts[:, 0].tolist() == [0, 0, 1, 0, 1, 0, 0]
    assert score.value == pytest.approx(100 * 2 / 7)
    assert outputs[4] == trees[4]
    f1, by_sentence = problem.counted(Evalb(), decoded, outputs, trees)
    assert by_sentence[:, 9].all()  # a sentence that is mended is valid: EVALB loses none
    assert 0 < f1.value < 100
    with pytest.raises(ValueError, match="finished trees do not show it"):
        Mended().counts(outputs, [trees], None)
    assert Mended().value(np.array([[1, 4], [0, 0]])).tolist() == [25, 0]


def test_a_wrong_tag_costs_a_sentence_nothing_else() -> None:
    problem = parsing("data.tags=true")
    trees = problem.references("dev")
    decoded = [symbols.replace(" . ", " NN ").replace("DT", ".") for symbols in problem.text("dev")[1]]
    assert any(" . " in symbols for symbols in decoded)
    outputs = problem.outputs("dev", decoded)
    score, counts = problem.counted(Evalb(), decoded, outputs, trees)
    assert (score.value, counts[:, 9].all()) == (100, True)  # punctuation is told from words as in the treebank
    assert problem.counted(Mended(), decoded, outputs, trees)[0].value == 0
    verbs = [symbols.replace("VBZ", "VBP") for symbols in problem.text("dev")[1]]
    assert problem.outputs("dev", verbs) != trees  # tags of words are the model's


def test_data_without_trees_cannot_be_parsed() -> None:
    with pytest.raises(
        ValueError, match="problem=parsing needs trees, and data=numbers_ende has none; name a treebank"
    ):
        problem_of(composed("problem=parsing", "data=numbers_ende")).asked_sizes()


def test_a_tokenizer_without_the_symbols_is_refused(tmp_path: Path) -> None:
    text = [f"{word} {word}s" for word in ("dog", "cat", "man")]
    (tmp_path / "words.model").write_bytes(Tokenizer.train(text, vocab_size=20).model)
    problem = parsing(f"data.tokenizer={tmp_path}/words.model", f"outputs={tmp_path}/outputs")
    with pytest.raises(ValueError, match=r"data\.tokenizer has no piece of its own for \d+ of the \d+ symbols"):
        problem.prepare()
    assert not [file for file in (tmp_path / "outputs" / "prepared").iterdir() if file.suffix != ".lock"]


def test_the_tokenizer_of_a_parser_is_taken(tmp_path: Path) -> None:
    first = parsing(f"outputs={tmp_path}", "data.vocab_size=200")
    first.prepare()
    second = parsing(f"outputs={tmp_path}", "data.corpus.seed=3", f"data.tokenizer={first.folder}/tokenizer.model")
    second.prepare()
    assert second.vocabularies.hash == first.vocabularies.hash


def test_files_of_trees_are_a_corpus(tmp_path: Path) -> None:
    files: dict[str, Any] = {}
    for split, word in (("train", "dog"), ("dev", "cat")):
        files[split] = tmp_path / f"{split}.mrg"
        files[split].write_text(
            f"( (S (NP-SBJ (DT the) (NN {word})) (VP (VBZ sleeps) (-NONE- *))) )\n\n(FRAG (NN {word}))\n"
        )
    problem = problem_of(composed("data=treebank", *(f"data.trees.{split}={path}" for split, path in files.items())))
    assert isinstance(problem, Parsing)
    assert problem.text("dev")[0] == ["the cat sleeps", "cat"]
    assert problem.references("dev") == ["(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))", "(FRAG (NN cat))"]
    assert problem.trees.symbols() == ["(FRAG", "(NP", "(S", "(VP", ")FRAG", ")NP", ")S", ")VP", "XX"]


def test_a_finished_parser_is_scored_as_it_was_and_not_as_the_command_lines_problem() -> None:
    stored = OmegaConf.to_container(composed("data=treebank_generated"), resolve=True)
    assert isinstance(stored, dict)
    stored["metrics"]["theirs"] = {"_target_": "os.system"}
    assert list(metric_options(composed(), stored)) == ["evalb", "evalb_40", "mended", "perplexity"]
    own = OmegaConf.to_container(composed("metrics=[bleu,perplexity]"), resolve=True)
    assert isinstance(own, dict)
    assert "chrf" in metric_options(composed(), own)  # of the same problem, the command line's
