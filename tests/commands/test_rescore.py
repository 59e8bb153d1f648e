import json
from pathlib import Path

import pytest
from conftest import Told, write_checkpoint

from aiayn.checkpoints import checkpoint
from aiayn.commands.rescore import rescore
from aiayn.inference.scoring import log_likelihoods

SIZES = ["model.layers=1", "model.d_model=14", "model.d_ff=11", "model.heads=2"]


def test_given_translations_get_scores_as_the_search_gives_them(told: Told, tmp_path: Path) -> None:
    saved = write_checkpoint(tmp_path / "a.ckpt", *SIZES, words=("one", "two", "three", "four", "five"))
    sources, targets = ["one two three", "", "five one"], ["four", "two", ""]
    for side, lines in (("source", sources), ("target", targets)):
        (tmp_path / f"{side}.txt").write_text("".join(f"{line}\n" for line in lines))
    files = [f"{side}={tmp_path}/{side}.txt" for side in ("source", "target")]
    given = ["task=rescore", f"checkpoint={saved}", *files, f"output={tmp_path}/scores", "trainer=cpu"]
    rescore(told(*given))
    scores = [json.loads(line) for line in (tmp_path / "scores").read_text().splitlines()]
    loaded = checkpoint.read(saved)
    sums, tokens = log_likelihoods(loaded.model(), loaded.vocabularies, sources, targets, tokens_per_batch=100)
    assert [score["log_probability"] for score in scores] == pytest.approx(sums, rel=1e-5)
    assert [score["tokens"] for score in scores] == tokens.tolist()
    assert [score["score"] for score in scores] == pytest.approx(sums / ((5 + tokens) / 6) ** 0.6, rel=1e-5)
    (tmp_path / "target.txt").write_text("one\n")
    with pytest.raises(ValueError, match=r"must have the same number of lines, got 3 in .*source\.txt and 1 in"):
        rescore(told(*given))
