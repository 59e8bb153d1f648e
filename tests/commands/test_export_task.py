"""task=export writes a whole folder or none, and task=translate and the rest read it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Told, composed, write_checkpoint

from aiayn.checkpoints import averaging, checkpoint
from aiayn.commands.export import export_model
from aiayn.commands.translate import translate
from aiayn.inference import export

SIZES = ["model.layers=1", "model.d_model=22", "model.d_ff=31", "model.heads=2"]
Translating = Callable[..., list[str]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model with random weights."""
    words = ("one", "two", "three", "four", "five", "eins", "zwei", "drei", "vier")
    return write_checkpoint(tmp_path_factory.mktemp("saved") / "a.ckpt", *SIZES, words=words, step=17)


def exporting(checkpoint: Any, output: Path, *overrides: str) -> None:
    export_model(composed("task=export", f"checkpoint={checkpoint}", f"output={output}", *overrides))


@pytest.fixture
def translating(told: Told, tmp_path: Path) -> Translating:
    def translating(checkpoint: Path, *overrides: str) -> list[str]:
        (tmp_path / "in.txt").write_text("one two\n\nfive drei vier\n")
        paths = [f"checkpoint={checkpoint}", f"input={tmp_path}/in.txt", f"output={tmp_path}/out.txt"]
        translate(told("task=translate", *paths, "trainer=cpu", *overrides))
        return (tmp_path / "out.txt").read_text().split("\n")

    return translating


@pytest.mark.slow
def test_an_exported_model_translates_as_before(translating: Translating, saved: Path, tmp_path: Path) -> None:
    exporting(saved, tmp_path / "new" / "ct2")
    exporting(saved, tmp_path / "st", "format=safetensors")
    plain = translating(saved, "inference.beam=1")
    assert plain[1] == ""
    assert len(set(plain)) == 3
    assert translating(tmp_path / "new" / "ct2", "inference.beam=1", "backend=ctranslate2") == plain
    assert translating(tmp_path / "st", "inference.beam=1") == plain
    lines = translating(tmp_path / "new" / "ct2", "backend=ctranslate2", "n_best=2", "inference.beam=3")
    assert [line[:5] for line in lines if line] == ["0 |||", "0 |||", "1 |||", "2 |||", "2 |||"]


@pytest.mark.slow
def test_an_exported_folder_can_be_averaged_and_exported_again(saved: Path, tmp_path: Path) -> None:
    exporting(saved, tmp_path / "st", "format=safetensors")
    exporting(tmp_path / "st", tmp_path / "again", "format=safetensors")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("st", "again")]
    assert files[0] == files[1]
    mean = averaging.average([saved, tmp_path / "st"])
    assert all(
        torch.equal(value, checkpoint.read_raw(saved)["state_dict"][name]) for name, value in mean["state_dict"].items()
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["format=onnx"], "format must be ctranslate2 or safetensors, got onnx"),
        (["format=safetensors", "quantization=int8"], "quantization=int8 is for format=ctranslate2"),
        (["quantization=int4"], "quantization must be one of .* got int4"),
        (["checkpoint=[a,b]"], "must name one model here, got 2"),
        (["checkpoint=/nowhere.ckpt"], r"/nowhere\.ckpt does not exist"),
    ],
)
def test_a_mistake_writes_nothing(saved: Path, tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        exporting(saved, tmp_path / "a", *overrides)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["ctranslate2", "safetensors"])
def test_what_exists_is_never_overwritten(saved: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match="exists, and a folder is never overwritten; name another output"):
            exporting(saved, taken, f"format={kind}")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failed_export_leaves_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_write_rest", fail)
    for kind in ("ctranslate2", "safetensors"):
        with pytest.raises(OSError, match="No space left"):
            exporting(saved, tmp_path / "a", f"format={kind}")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_manifest_is_no_checkpoint(translating: Translating, saved: Path, tmp_path: Path) -> None:
    exporting(saved, tmp_path / "a", "format=safetensors")
    (tmp_path / "a" / "aiayn.json").unlink()
    with pytest.raises(ValueError, match=r"without checkpoints/averaged\.ckpt"):
        translating(tmp_path / "a")
    with pytest.raises(ValueError, match=r"without checkpoints/averaged\.ckpt"):
        translating(tmp_path / "a", "backend=ctranslate2")


def test_a_full_temporary_folder_is_named_with_what_to_do(
    translating: Translating, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export, "write_ctranslate2", full)
    with pytest.raises(OSError, match=r"to the system's temporary folder: .*No space left on device; make room there"):
        translating(saved, "backend=ctranslate2")
