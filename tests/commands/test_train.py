import json
from pathlib import Path

import pytest
from conftest import SMALL, Told, write_checkpoint
from omegaconf import OmegaConf

from aiayn.commands.train import read_newest, train


def test_a_damaged_newest_checkpoint_is_named_with_what_remains_without_it(tmp_path: Path) -> None:
    older, newest = tmp_path / "step_0000007.ckpt", tmp_path / "step_0000011.ckpt"
    write_checkpoint(older, *SMALL, words=("one", "two"), step=7)
    newest.write_bytes(older.read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*resumes from step_0000007\.ckpt"):
        read_newest(newest)
    older.unlink()
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*Delete it, and the same command starts anew"):
        read_newest(newest)


@pytest.mark.parametrize(
    ("refused", "says"), [(["trainer.devices=4099"], "trainer.devices=4099"), ([], "same number of lines")]
)
def test_results_stay_where_what_is_to_take_their_place_is_refused(
    refused: list[str], says: str, told: Told, tmp_path: Path
) -> None:
    run, files = tmp_path / "run", {}
    for split, targets in {"train": "eins\n", "dev": "eins\nzwei\n"}.items():  # a line is missing by now
        for side, text in {"source": "one\ntwo\n", "target": targets}.items():
            files[f"data.{split}.{side}"] = file = tmp_path / f"{split}.{side}"
            file.write_text(text)
    of_text = ["data=text", "data.source_language=en", "data.target_language=de"]
    named = [f"{key}={file}" for key, file in files.items()]
    cfg = told(*of_text, *named, "trainer=cpu", *refused, f"outputs={tmp_path}", f"run_dir={run}", "force=true")
    done = {"status": "done", "steps": 7, "config": OmegaConf.to_container(cfg), "made_of": {"text": "of another text"}}
    (run / "checkpoints").mkdir(parents=True)
    kept = {run / "result.json": json.dumps(done), run / "checkpoints" / "step_0000007.ckpt": "weights"}
    for path, content in kept.items():
        path.write_text(content)
    with pytest.raises(ValueError, match=says):
        train(cfg)
    assert {path: path.read_text() for path in kept if path.exists()} == kept
