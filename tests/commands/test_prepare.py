"""A corpus can be encoded with a tokenizer that is there already, which fine-tuning needs."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
import sentencepiece
import torch
from conftest import SMALL, CommandLine, Told, prepared, write_checkpoint

from aiayn.checkpoints import checkpoint
from aiayn.commands.plan import plan_row, read_assumptions

WORDS = ("one", "two", "three", "eins", "zwei", "drei")
SIZES = [override for override in SMALL if not override.startswith("data.corpus.")]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, which has its tokenizer in a file, too."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "checkpoints").mkdir()
    file = write_checkpoint(folder / "checkpoints" / "averaged.ckpt", *SMALL, words=WORDS, step=17)
    (folder / "tokenizer.model").write_bytes(checkpoint.read(file).vocabularies.source.model)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    """The keys of a text of one's own."""
    numbers = [(f"{a} {b}", f"{c} {d}") for a, c in zip(WORDS, WORDS[3:], strict=False) for b, d in [("two", "zwei")]]
    for split, pairs in (("train", numbers * 2), ("dev", [("two one", "zwei eins")])):
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    sides = [f"data.{s}.{side}={tmp_path}/{s}.{side}" for s in ("train", "dev") for side in ("source", "target")]
    return ["data=text", "data.target_language=de", f"outputs={tmp_path}/outputs", *sides]


@pytest.mark.slow
def test_a_text_is_encoded_with_the_tokenizer_of_a_run_a_checkpoint_or_a_file(
    given: Path, text: list[str], told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = given / "checkpoints" / "averaged.ckpt"
    own = checkpoint.read(file).vocabularies
    found = [
        prepared(told(*SIZES, *text, f"data.tokenizer={path}", vocabulary))
        for path in (given, file, given / "tokenizer.model")
        for vocabulary in ("data.vocab_size=300", f"data.vocab_size={own.source.vocab_size}")
    ]
    assert {corpus.vocabularies.hash for corpus in found} == {own.hash}
    assert len({corpus.path for corpus in found}) == 1  # by its content
    assert own.source.decode([found[0].pairs("train").source[0]]) == ["one two"]
    said = [record.getMessage() for record in caplog.records if "data.vocab_size=" in record.getMessage()]
    assert len(said) == 3
    assert f"data.vocab_size=300 is not used: data.tokenizer={given} has {own.source.vocab_size} pieces" in said[0]
    assert prepared(told(*SIZES, *text)).path != found[0].path


@pytest.mark.slow
def test_a_tokenizer_that_cannot_be_taken_is_a_line(given: Path, text: list[str], told: Told, tmp_path: Path) -> None:
    model = (given / "tokenizer.model").read_bytes()
    foreign = io.BytesIO()  # with the ids that SentencePiece chooses by itself
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS), model_writer=foreign, vocab_size=23, model_type="bpe", minloglevel=2
    )
    damaged = {"half": model[: len(model) // 2], "empty": b"", "other": b"text\n", "foreign": foreign.getvalue()}
    for name, content in damaged.items():
        (tmp_path / f"{name}.model").write_bytes(content)
    (tmp_path / "half.ckpt").write_bytes((given / "checkpoints" / "averaged.ckpt").read_bytes()[:-99])
    words = {
        "nowhere": "checkpoint .*nowhere does not exist",
        "nowhere.model": "No such file",
        "outputs": r"is a folder without checkpoints/averaged\.ckpt",
        "half.ckpt": "checkpoint .*half.ckpt",
        "half.model": "not a SentencePiece model",
        "empty.model": r"pad, unk, bos, eos = \(-1, -1, -1, -1\), and \(0, 1, 2, 3\) is needed",
        "foreign.model": r"pad, unk, bos, eos = \(-1, 0, 1, 2\), and \(0, 1, 2, 3\) is needed",
        "other.model": "not a SentencePiece model",
    }
    (tmp_path / "outputs").mkdir()
    for name, word in words.items():
        with pytest.raises(ValueError, match=f"^data.tokenizer={re.escape(str(tmp_path / name))}: .*{word}") as caught:
            prepared(told(*SIZES, *text, f"data.tokenizer={tmp_path / name}"))
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / "outputs").iterdir())


def test_a_plan_counts_the_vocabulary_of_the_given_tokenizer(given: Path, told: Told) -> None:
    size = checkpoint.read(given / "checkpoints" / "averaged.ckpt").vocabularies.source.vocab_size
    cfg = told(*SMALL, "task=plan", f"data.tokenizer={given}", "plan.devices=1")
    same = told(*SMALL, "task=plan", f"data.vocab_size={size}")
    assumptions = read_assumptions(dict(cfg.plan))
    assert plan_row(cfg, "x", assumptions) == plan_row(same, "x", assumptions)
    missing = plan_row(told(*SMALL, "task=plan", "data.tokenizer=nowhere"), "x", assumptions)
    assert "data.tokenizer=" in (missing.refused or "")


@pytest.mark.slow
def test_a_run_is_fine_tuned_on_other_text(
    given: Path, text: list[str], in_process: CommandLine, tmp_path: Path
) -> None:
    steps = ["training.max_steps=2", "training.checkpoint_steps=1", "training.validate_steps=2", "data.split=dev"]
    run = [*SIZES, *text, *steps, "training.warmup_steps=100000", f"run_dir={tmp_path}/run"]
    refused = in_process(*run, f"training.initialize={given}")
    assert refused.returncode == 1
    remedy = re.search(r"give (data\.tokenizer=\S+) too", refused.stderr)
    assert remedy
    done = in_process(*run, f"training.initialize={given}", remedy[1], f"run_dir={tmp_path}/tuned")
    assert not done.returncode, done.stderr
    result = json.loads((tmp_path / "tuned" / "result.json").read_text())
    assert (result["status"], result["steps"], result["initialized"]["step"]) == ("done", 2, 17)
    first, tuned = (checkpoint.read(checkpoint.located(path)) for path in (given, tmp_path / "tuned"))
    assert tuned.vocabularies.hash == first.vocabularies.hash
    for name, value in tuned.weights.items():  # of steps as small as the first of so long a warm-up
        torch.testing.assert_close(value, first.weights[name], atol=1e-3, rtol=0)
