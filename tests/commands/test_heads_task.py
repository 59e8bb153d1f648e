"""The command: what it writes, what it refuses, what W&B is told."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Told, write_checkpoint

from aiayn.checkpoints import checkpoint
from aiayn.commands.heads import cells, heads, notes
from aiayn.inference.export import write_safetensors
from aiayn.model.model import Model

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with an averaged checkpoint of random weights, of the embedded corpus."""
    folder = tmp_path / "runs" / "random"
    words = ("twenty", "three", "pounds", "drei", "Pfund")
    write_checkpoint(folder / "checkpoints" / "averaged.ckpt", *SMALL, f"run_dir={folder}", words=words, step=24)
    return folder


def task(run: Path | str, *overrides: str) -> list[str]:
    return ["task=heads", f"run={run}", "trainer=cpu", "inference.max_extra_length=2", *overrides]


def test_a_run_gets_a_table_and_a_picture(run: Path, told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    heads(told(*task(run, "sentences=2")))
    folder = run / "heads" / "averaged.dev"
    assert {path.name for path in folder.iterdir()} == {f"heads.{end}" for end in ("csv", "json", "md", "png")}
    found = json.loads((folder / "heads.json").read_text())
    assert (found["step"], found["data"], found["split"], found["sentences"]) == (24, "numbers_ende", "dev", 2)
    assert "version:" in found["score"]["signature"]
    places = [(of["attention"], of["layer"], of["head"]) for of in found["heads"]]
    kinds = ("encoder self", "decoder self", "cross")
    assert places == [(kind, 1, head) for kind in kinds for head in (1, 2)]
    assert all(of["entropy"] > 0 and 0 < of["confidence"] < 1 and of["distance"] > 0 for of in found["heads"])
    rows = list(csv.DictReader((folder / "heads.csv").open()))
    assert [float(row["entropy"]) for row in rows] == [of["entropy"] for of in found["heads"]]
    text = (folder / "heads.md").read_text()
    assert text.count("\n| cross |") == 2
    assert (folder / "heads.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "\u2026" not in printed  # it fits into 80 characters
    assert printed.count("\n cross ") == 2
    assert printed.splitlines()[-1] == str(folder)


def test_without_a_head_a_parsers_trees_are_worse_or_not(told: Told, tmp_path: Path) -> None:
    data = ("data=treebank_generated", "data.corpus.trees=30", "data.corpus.dev=5", "data.corpus.test=5")
    model = [override for override in SMALL if override.startswith("model.")]
    file = write_checkpoint(
        tmp_path / "runs" / "parser" / "checkpoints" / "averaged.ckpt", *data, *model, words=("(S", "XX", ")S", "dog")
    )
    heads(told(*task(file, "sentences=3")))
    found = json.loads((tmp_path / "runs" / "parser" / "heads" / "averaged.dev" / "heads.json").read_text())
    assert (found["data"], found["sentences"]) == ("treebank_generated", 3)
    assert found["score"]["signature"].startswith("evalb:")


def test_a_checkpoint_another_split_and_another_folder(
    run: Path, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run / "checkpoints" / "averaged.ckpt"
    monkeypatch.chdir(tmp_path)
    heads(told(*task(file, "data.split=test", "sentences=3", "output=5")))
    found = json.loads((tmp_path / "5" / "heads.json").read_text())
    assert (found["checkpoint"], found["split"], found["sentences"]) == (str(file), "test", 3)
    assert not (run / "heads").exists()


def test_the_folder_in_a_run_is_named_by_checkpoint_and_split(run: Path, told: Told) -> None:
    file = (run / "checkpoints" / "averaged.ckpt").rename(run / "checkpoints" / "last.ckpt")
    heads(told(*task(file, "sentences=1", "data.split=test")))
    assert [path.name for path in (run / "heads").iterdir()] == ["last.test"]


def test_the_heads_of_an_exported_folder_are_in_it(run: Path, told: Told, tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    write_safetensors(checkpoint.read(run / "checkpoints" / "averaged.ckpt"), tmp_path / "exported")
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match="text that a lone file names is not read; name the data"):
        heads(told(*task(tmp_path / "exported")))
    heads(told(*task(tmp_path / "exported", "sentences=1", "data=numbers_ende")))
    assert (tmp_path / "exported" / "heads" / "exported.dev" / "heads.md").exists()
    assert set(tmp_path.iterdir()) == before


def test_a_file_in_the_place_of_the_output_is_refused_at_once(run: Path, told: Told, tmp_path: Path) -> None:
    (tmp_path / "h.txt").write_text("mine")
    (run / "checkpoints" / "averaged.ckpt").write_text("nothing that can be read")
    for place in ("h.txt", "h.txt/there"):
        with pytest.raises(ValueError, match=r"output must be a folder, got .*h\.txt is none; name another"):
            heads(told(*task(run, f"output={tmp_path}/{place}")))
    assert (tmp_path / "h.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sentences=0"], "sentences must be at least 1, or null for all, got 0"),
        (["sentences=a"], "sentences must be at least 1, or null for all, got a; give a whole number"),
        (["sentences=1.5"], r"or null for all, got 1\.5"),
        (["sentences=[1]"], r"or null for all, got \[1\]"),
        (["sentences=true"], "or null for all, got True"),
        (["data.split=valid"], "data.split=valid is not in numbers_ende; it has train, dev, test"),
        (["data.corpus.dev=7"], "data.corpus.dev is set, but not for which data"),
        (["inference.beam=0"], "inference.beam must be at least 1 .* got 0"),
    ],
)
def test_bad_values_are_refused(run: Path, told: Told, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heads(told(*task(run, *overrides)))
    assert not (run / "heads").exists()


@pytest.mark.parametrize("missing", ["heads", "output"])
def test_an_attention_without_heads_to_see_is_refused(
    run: Path, told: Told, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    build = checkpoint.Checkpoint.model

    def opaque(self: checkpoint.Checkpoint, accelerator: str, **trusting: Any) -> Model:
        model = build(self, accelerator, **trusting)
        delattr(model.encoder.layers[0].self_attention, missing)
        return model

    monkeypatch.setattr(checkpoint.Checkpoint, "model", opaque)
    with pytest.raises(ValueError, match=f"does not show its heads: it has no `{missing}`"):
        heads(told(*task(run)))
    assert not (run / "heads").exists()


def test_what_is_no_run_is_refused(run: Path, told: Told, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        heads(told(*task(tmp_path / "nowhere")))
    (run / "checkpoints" / "averaged.ckpt").unlink()
    with pytest.raises(ValueError, match=r"folder without checkpoints/averaged\.ckpt"):
        heads(told(*task(run)))
    (run / "checkpoints" / "averaged.ckpt").write_text("text")
    with pytest.raises(ValueError, match="is cut short, damaged, or not a checkpoint"):
        heads(told(*task(run)))


def test_only_losses_that_are_significant_after_the_correction_are_marked() -> None:
    place = {"attention": "cross", "layer": 1, "head": 2, "entropy": 1.5, "distance": 2.25, "confidence": 0.5}
    for p_holm, shown in ((0.04, "+1.25*"), (0.06, "+1.25 ")):
        line = cells({**place, "lost": 1.25, "p": 0.01, "p_holm": p_holm}, places=2)
        assert line == ["cross", "1", "2", "1.50", "2.25", "0.50", shown, "0.0100", f"{p_holm:.4f}"]
    assert cells({**place, "lost": 0.00126, "p": 0.01, "p_holm": 0.06}, places=4)[6] == "+0.0013 "  # of a share


def test_the_notes_name_the_heads_that_matter_most_first() -> None:
    p = np.full((3, 1, 5), 0.2)
    p[0, 0, 1] = p[2, 0, 3] = p[1, 0, 0] = 0.001
    lost = np.where(p < 0.01, 0.5, 0.1)
    lost[2, 0, 3] = 7
    p_holm = np.where(p < 0.01, 0.01, 1)
    p_holm[1, 0, 0] = 0.07
    first, second, _ = notes({"lost": lost, "p": p, "p_holm": p_holm}, places=2)
    assert first.startswith("2 of 15 heads")
    assert first.endswith(": cross 1.4 (+7.00), encoder self 1.2 (+0.50).")
    assert second.startswith("Without the correction 3 would; 0.8 are expected by chance")


def test_wandb_gets_both_in_the_runs_own_run(
    run: Path, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    (run / "wandb_id.txt").write_text("run7")
    wandb.teardown()
    heads(told(*task(run, "sentences=3", "logger=wandb", "logger.wandb.mode=offline")))
    wandb.teardown()
    (file,) = run.glob("wandb/offline-run-*/run-run7.wandb")
    assert [path.suffix for path in file.parent.glob("files/media/images/heads/*")] == [".png"]
    (table,) = file.parent.glob("files/media/table/heads/*.table.json")
    found = json.loads(table.read_text())
    assert found["columns"] == list(json.loads((run / "heads" / "averaged.dev" / "heads.json").read_text())["heads"][0])
    assert len(found["data"]) == 6
    assert (run / "wandb_id.txt").read_text() == "run7"
    assert not (run / "metrics").exists()
