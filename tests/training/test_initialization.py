"""A run may begin with the weights of another one, if they mean the same to it."""

import hashlib
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import SMALL, write_checkpoint

from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.building import build
from aiayn.data.tokenizer import Vocabularies
from aiayn.inference.export import write_safetensors
from aiayn.model.model import Model
from aiayn.training.initialization import initialize

LEARNED = ("model/position=learned", "model.position.max_length=31")
write = partial(write_checkpoint, words=("one", "two", "eins", "zwei"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("first") / "a.ckpt", *SMALL, *LEARNED, seed=5, step=17)


def model_of(path: Path) -> tuple[Model, Vocabularies]:
    """A new model of a checkpoint's config, and its vocabularies."""
    loaded = checkpoint.read(path)
    torch.manual_seed(7)
    return build(loaded.config["model"], **loaded.vocabularies.sizes), loaded.vocabularies


def test_a_model_gets_the_weights_and_the_result_says_of_what(file: Path) -> None:
    model, vocabularies = model_of(file)
    told = initialize(model, vocabularies, file)
    weights = checkpoint.read(file).weights
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert told == {"file": str(file), "step": 17, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.position.max_length=37", r"(31, 16) there and (37, 16) here; set model.position.max_length as it was"),
        ("model.d_ff=29", r"is (32, 16) there and (29, 16) here; set model.* as it was"),
        ("model.layers=2", r"is missing there and "),
    ],
)
def test_what_does_not_fit_is_said_with_both_shapes(file: Path, tmp_path: Path, override: str, words: str) -> None:
    model, vocabularies = model_of(write(tmp_path / "b.ckpt", *SMALL, *LEARNED, override))
    with pytest.raises(ValueError, match=re.escape(words)):
        initialize(model, vocabularies, file)


def test_another_vocabulary_is_refused_with_the_remedy(file: Path, tmp_path: Path) -> None:
    model, vocabularies = model_of(
        write_checkpoint(tmp_path / "b.ckpt", *SMALL, *LEARNED, words=("one", "two", "drei"))
    )
    with pytest.raises(ValueError, match=f"has another vocabulary, .*; give data.tokenizer={file} too"):
        initialize(model, vocabularies, file)


def test_an_exported_folder_gives_its_weights_too(file: Path, tmp_path: Path) -> None:
    write_safetensors(checkpoint.read(file), tmp_path)
    model, vocabularies = model_of(file)
    told = initialize(model, vocabularies, tmp_path)
    assert told["sha256"] == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
