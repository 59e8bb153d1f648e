"""A tokenizer for each side, through everything that reads text or writes it (`data.shared_vocabulary=false`)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, CommandLine, Told, logits, prepared, write_checkpoint

from aiayn.analysis.alignment import align, links
from aiayn.analysis.page import attention
from aiayn.checkpoints import averaging, checkpoint
from aiayn.checkpoints.checkpoint import Checkpoint
from aiayn.commands.plan import plan_row, read_assumptions
from aiayn.data.tokenizer import BOS, EOS, Tokenizer
from aiayn.inference import beam_search, ctranslate2_decoder, ensemble, export
from aiayn.inference.scoring import log_likelihoods
from aiayn.inference.translation import load, translator
from aiayn.training.initialization import initialize

WORDS = ("one", "two", "three", "four", "five")
LINES = ["one two", "", "fours", "three ones five five two"]
PAIR = "data.shared_vocabulary=false"
STEPS = [
    *("training.max_steps=2", "training.checkpoint_steps=1", "training.validate_steps=2"),
    *("training.keep_checkpoints=2", "training.warmup_steps=100000"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in its run's folder; its source has small letters, its target capitals."""
    folder = tmp_path_factory.mktemp("pair") / "checkpoints"
    return write_checkpoint(folder / "averaged.ckpt", *SMALL, PAIR, words=WORDS, step=17, seed=2)


@pytest.fixture(scope="module")
def loaded(file: Path) -> Checkpoint:
    return checkpoint.read(file)


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer for both sides is the pair's of the source."""
    return write_checkpoint(tmp_path_factory.mktemp("joint") / "b.ckpt", *SMALL, words=WORDS)


def capitals(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


def test_a_checkpoint_and_an_average_hold_both_tokenizers(file: Path, loaded: Checkpoint, tmp_path: Path) -> None:
    own = loaded.vocabularies
    assert not own.shared
    assert own.source.decode(own.source.encode(LINES)) == LINES
    assert own.target.decode(own.target.encode(capitals(LINES))) == capitals(LINES)
    assert (own.source.vocab_size, own.target.vocab_size) == tuple(
        len(loaded.weights[f"{name}.weight"]) for name in ("source_embedding", "embedding")
    )
    other = write_checkpoint(tmp_path / "a.ckpt", *SMALL, PAIR, words=WORDS, seed=3)
    checkpoint.write(tmp_path / "mean.ckpt", averaging.average([file, other]))
    assert checkpoint.read(tmp_path / "mean.ckpt").vocabularies.hash == own.hash


def test_a_cached_step_gives_the_full_pass_and_only_the_source_reads_the_source_s_matrix(loaded: Checkpoint) -> None:
    model, sizes = loaded.model(), loaded.vocabularies.sizes
    source = torch.arange(4, sizes["source_vocab_size"])[None]  # the last is no id of the target's
    target = torch.tensor([[BOS, 5, sizes["vocab_size"] - 1, 7]])
    state = model.start(source)
    steps = torch.stack([model.step(target[:, i : i + 1], state)[:, 0] for i in range(4)], 1)
    torch.testing.assert_close(steps, logits(model, source, target), atol=1e-5, rtol=1e-5)
    assert steps.size(-1) == sizes["vocab_size"] < sizes["source_vocab_size"]
    logits(model, source, target).sum().backward()
    assert model.source_embedding.weight.grad[4:].abs().sum(1).all()
    assert not model.source_embedding.weight.grad[:4].any()


@pytest.mark.parametrize("search", [{"beam": 3}, {"temperature": 1.0, "top_k": 5}], ids=["beam", "samples"])
def test_translations_are_spelled_by_the_target_s_tokenizer(loaded: Checkpoint, search: dict[str, float]) -> None:
    settings = {"beam": 1, "alpha": 0.6, "max_extra_length": 7, "tokens_per_batch": 100, **search}
    found = translator(loaded.model(), loaded.vocabularies, **settings).translate(LINES)  # type: ignore[arg-type]
    assert found[1] == ""
    assert any(found)
    assert not re.search("[a-z]", "".join(found))


def test_each_side_of_a_pair_is_scored_in_its_own_pieces(loaded: Checkpoint) -> None:
    model, own, targets = loaded.model(), loaded.vocabularies, capitals(LINES[::-1])
    sums, pieces = log_likelihoods(model, own, LINES, targets, tokens_per_batch=23)
    for row, (read, written) in enumerate(zip(own.source.encode(LINES), own.target.encode(targets), strict=True)):
        found = logits(model, torch.tensor([[*read, EOS]]), torch.tensor([[BOS, *written]]))[0]
        expected = found.log_softmax(-1)[range(len(written) + 1), [*written, EOS]].sum().item()
        assert (sums[row], pieces[row]) == (pytest.approx(expected, rel=1e-5), len(written) + 1)


def test_pictures_and_alignments_have_the_pieces_of_both(loaded: Checkpoint) -> None:
    own, source, target = loaded.vocabularies, "two fours", "FIVES ONE TWO"
    [read], [written] = own.source.encode([source]), own.target.encode([target])
    shown = attention(loaded.model(), own, read.tolist(), written.tolist())
    assert re.sub(r"\W", "", "".join(shown["source"][:-1])) == "twofours"
    assert re.sub(r"\W", "", "".join(shown["target"][1:])) == "FIVESONETWO"
    words = [number for number, piece in enumerate(own.source.pieces(read)) if piece.startswith("\u2581")]
    begins = np.cumsum([piece.startswith("\u2581") for piece in own.target.pieces(written)]) - 1
    attended = [words[word % 2] for word in begins]
    assert links(own, source, written.tolist(), attended) == [(0, 0), (0, 2), (1, 1)]
    assert align(loaded.model(), own, [source], [written.tolist()])[0]


@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_searches_the_same_model(loaded: Checkpoint, tmp_path: Path, beam: int) -> None:
    export.write_ctranslate2(loaded, tmp_path)
    assert {"source_vocabulary.json", "target_vocabulary.json", "target_tokenizer.model"} <= {
        file.name for file in tmp_path.iterdir()
    }
    found = ctranslate2_decoder.load(tmp_path)
    read = [ids for ids in loaded.vocabularies.source.encode([*LINES, *WORDS]) if len(ids)]
    settings = {"beam": beam, "max_extra_length": 7}
    theirs = ctranslate2_decoder.decode(found, read, **settings)
    ours = beam_search.decode(loaded.model(), read, **settings)
    same = [mine[0].tokens == other[0].tokens for mine, other in zip(ours, theirs, strict=True)]
    assert all(same) if beam == 1 else sum(same) >= 7
    assert len({len(mine[0].tokens) for mine in ours}) > 2  # not all are alike


def test_an_export_gives_back_both_and_needs_both(loaded: Checkpoint, tmp_path: Path) -> None:
    for name, write in (("ctranslate2", export.write_ctranslate2), ("safetensors", export.write_safetensors)):
        (tmp_path / name).mkdir()
        write(loaded, tmp_path / name)
    texts = [
        load(tmp_path / name, beam=1, accelerator="cpu").translate(LINES) for name in ("ctranslate2", "safetensors")
    ]
    assert texts[0] == texts[1]
    assert checkpoint.read(tmp_path / "safetensors").vocabularies.hash == loaded.vocabularies.hash
    pieces = tmp_path / "ctranslate2" / "target_vocabulary.json"
    pieces.write_text(json.dumps(json.loads(pieces.read_text())[::-1]))
    with pytest.raises(ValueError, match=r"target_vocabulary\.json does not hold the pieces"):
        ctranslate2_decoder.load(tmp_path / "ctranslate2")
    for change in (lambda file: file.write_bytes(file.read_bytes()[:17]), Path.unlink):
        change(tmp_path / "safetensors" / "target_tokenizer.model")
        with pytest.raises(ValueError, match="its tokenizer does not have the stored hash"):
            checkpoint.read(tmp_path / "safetensors")


def test_a_pair_is_another_vocabulary_than_one_for_both(file: Path, joint: Path, loaded: Checkpoint) -> None:
    assert checkpoint.read(joint).vocabularies.source.model == loaded.vocabularies.source.model
    with pytest.raises(ValueError, match="have different vocabularies"):
        ensemble.load([file, joint])
    with pytest.raises(ValueError, match=r"differ in data\.shared_vocabulary"):
        averaging.average([file, joint])
    assert initialize(loaded.model(), loaded.vocabularies, file)["step"] == 17
    for path, model in ((file, checkpoint.read(joint)), (joint, loaded)):
        remedy = f"give data.tokenizer={path} and data.shared_vocabulary={'true' if path == joint else 'false'} too"
        with pytest.raises(ValueError, match=remedy):
            initialize(model.model(), model.vocabularies, path)


def test_a_corpus_takes_a_pair_where_a_pair_is_asked_for(file: Path, joint: Path, told: Told, tmp_path: Path) -> None:
    given = [*SMALL, f"outputs={tmp_path}", f"data.tokenizer={file}"]
    pair = prepared(told(*given, PAIR))
    assert pair.vocabularies.hash == checkpoint.read(file).vocabularies.hash
    with pytest.raises(ValueError, match=r"is a tokenizer for each side; set data\.shared_vocabulary=false, or"):
        prepared(told(*given))
    model = tmp_path / "tokenizer.model"
    model.write_bytes(Tokenizer.train(WORDS, vocab_size=23).model)
    for one in (joint, model):
        with pytest.raises(ValueError, match=r"is one tokenizer for both sides; set data\.shared_vocabulary=true, or"):
            prepared(told(*SMALL, f"outputs={tmp_path}", f"data.tokenizer={one}", PAIR))


def test_a_plan_counts_the_second_matrix(file: Path, told: Told) -> None:
    shared, pair, given = (
        told(*SMALL, "task=plan", "plan.devices=1", *more) for more in ([], [PAIR], [PAIR, f"data.tokenizer={file}"])
    )
    assumptions = read_assumptions(dict(shared.plan))
    one, two, third = (plan_row(cfg, "x", assumptions).parameters or 0 for cfg in (shared, pair, given))
    assert two - one == 300 * 16
    assert third == sum(weight.numel() for weight in checkpoint.read(file).weights.values())


@pytest.mark.slow
def test_a_run_with_a_pair_is_trained_and_resumed(in_process: CommandLine, tmp_path: Path) -> None:
    run = [*SMALL, *STEPS, PAIR, f"outputs={tmp_path}"]
    done = in_process(*run, f"run_dir={tmp_path}/run", "data.vocab_size=9000")
    assert not done.returncode, done.stderr
    assert done.stderr.count("data.vocab_size=9000 is more than the") == 2
    again = in_process(*run, f"run_dir={tmp_path}/run", "data.vocab_size=9000", "training.max_steps=3")
    assert not again.returncode, again.stderr
    loaded = checkpoint.read(checkpoint.located(tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["parameters"]) == (3, sum(weight.numel() for weight in loaded.weights.values()))
    assert (
        loaded.vocabularies.sizes.items()
        <= json.loads((tmp_path / "prepared" / result["corpus"] / "statistics.json").read_text()).items()
    )
