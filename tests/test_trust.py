"""What a file may name: ours, and what lies in packages of the reader's own list."""

import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from small_model import MODEL, content

from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import evaluated_problem
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.trust import check_corpus, check_named, ours

PACKAGE = """
import os
from os import rmdir
from pathlib import Path

from torch import nn
from aiayn.model.norm.post import PostNorm

class Norm(PostNorm):
    pass
"""
NORM = {"_target_": "theirs.Norm", "_partial_": True, "d_model": 6, "dropout": 0.0}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package beside us, which is imported anew in each test."""
    (tmp_path / "theirs.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    return Vocabularies.joint(Tokenizer.train(["one two three"], vocab_size=19))


def stored(folder: Path, vocabularies: Vocabularies, **changed: Any) -> checkpoint.Checkpoint:
    """A checkpoint that says more of itself than is true of its weights."""
    saved = content(vocabularies, seed=1, step=1)
    saved["config"] = {"model": {**MODEL, **changed}, "trust": ["theirs", "os"], "data": {"trust": ["theirs"]}}
    checkpoint.write(folder / "a.ckpt", saved)
    return checkpoint.read(folder / "a.ckpt")


def test_code_of_a_package_runs_only_for_readers_who_list_it(theirs: Path, vocabularies: Vocabularies) -> None:
    loaded = stored(theirs, vocabularies, norm=NORM)
    for trust in ((), ["elsewhere"], ["their"], [""]):
        with pytest.raises(ValueError, match=r"names theirs\.Norm; .* give trust=\[.*theirs\]"):
            loaded.model(trust=trust)
    assert "theirs" not in sys.modules
    assert type(loaded.model(trust=["theirs"]).encoder.layers[0].feed_forward_norm).__name__ == "Norm"
    assert loaded.model(trust=OmegaConf.create(["theirs"]))


@pytest.mark.parametrize(
    "target", ["theirs.rmdir", "theirs.os.rmdir", "theirs.Path.rmdir", "theirs.nn.Linear", "theirs.PostNorm"]
)
def test_what_a_trusted_package_has_from_elsewhere_is_not_trusted_with_it(
    theirs: Path, vocabularies: Vocabularies, target: str
) -> None:
    place = theirs / "place"
    place.mkdir()
    loaded = stored(theirs, vocabularies, norm={"_target_": target, "_args_": [str(place)]})
    with pytest.raises(ValueError, match=rf"names {target}, which is defined in .* and not in theirs"):
        loaded.model(trust=["theirs"])
    assert place.exists()


def test_all_that_is_missing_is_named_at_once(theirs: Path, vocabularies: Vocabularies) -> None:
    loaded = stored(theirs, vocabularies, norm=NORM, end={"_target_": "torch.nn.Linear", "_partial_": True})
    with pytest.raises(ValueError, match=r"give trust=\[other,(theirs,torch\.nn|torch\.nn,theirs)\]"):
        loaded.model(trust=["other"])


def test_a_trusted_package_that_is_not_here_says_where_to_put_it(tmp_path: Path, vocabularies: Vocabularies) -> None:
    loaded = stored(tmp_path, vocabularies, norm={**NORM, "_target_": "gone.Norm"})
    with pytest.raises(ValueError, match=r"gone\.Norm, which cannot be imported: .*; put .* gone on PYTHONPATH"):
        loaded.model(trust=["gone"])


def test_a_text_is_no_list_of_packages() -> None:
    with pytest.raises(ValueError, match=r"trust must be a list .* give trust=\[theirs\]"):
        check_named(NORM, ours=lambda target: False, trust="theirs", what="it")


def test_a_corpus_of_ones_own_is_read_when_it_is_trusted(theirs: Path) -> None:
    check_corpus({"_target_": "theirs.Norm"}, trust=["theirs"])
    inside = {"_target_": "aiayn.data.corpora.numbers.Numbers", "pairs": {"_target_": "theirs.rmdir"}}
    for trust in ((), ["theirs"]):
        with pytest.raises(ValueError, match=r"names theirs\.rmdir"):
            check_corpus(inside, trust=trust)


def test_what_reads_files_has_no_remedy() -> None:
    with pytest.raises(ValueError, match=r"names torch\.load; from a file only what is ours there is accepted\.$"):
        check_named({"_target_": "torch.load"}, ours=lambda target: False, trust=(), what="it")


@pytest.mark.parametrize("name", ["aiayn.problems.translation.os.getcwd", "aiayn.problems.problem.write_text"])
def test_a_problem_is_ours_itself_and_not_what_its_module_imports(name: str) -> None:
    stored = {"problem": {"_target_": name, "path": {"_target_": "aiayn.problems.problem.Path"}}, "data": {}}
    with pytest.raises(ValueError, match="the stored problem names aiayn"):
        evaluated_problem(OmegaConf.create({"trust": []}), stored, OmegaConf.create({}), {})


def test_what_conf_names_of_ours_has_its_place_and_nothing_else() -> None:
    assert "aiayn.data.corpora.numbers.Numbers" in ours("data")
    assert "aiayn.evaluation.metrics.perplexity.Perplexity" in ours("metrics")
    assert ours("problem") == {"aiayn.problems.parsing.Parsing", "aiayn.problems.translation.Translation"}
    assert all(name.startswith("aiayn.data.corpora.") for name in ours("data"))
    assert all(name.startswith("aiayn.evaluation.metrics.") for name in ours("metrics"))


def test_a_package_that_ends_python_is_named_and_ends_nothing(
    theirs: Path, vocabularies: Vocabularies, monkeypatch: pytest.MonkeyPatch
) -> None:
    (theirs / "leaving.py").write_text("raise SystemExit(3)\n")
    monkeypatch.delitem(sys.modules, "leaving", raising=False)
    loaded = stored(theirs, vocabularies, norm={**NORM, "_target_": "leaving.Norm"})
    with pytest.raises(ValueError, match=r"names leaving\.Norm, which cannot be imported: .*3.*; mend it"):
        loaded.model(trust=["leaving"])
