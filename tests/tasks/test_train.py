from pathlib import Path

import pytest
from conftest import SMALL, write_checkpoint

from aiayn.tasks.train import read_newest


def test_a_damaged_newest_checkpoint_is_named_with_what_remains_without_it(tmp_path: Path) -> None:
    older, newest = tmp_path / "step_0000007.ckpt", tmp_path / "step_0000011.ckpt"
    write_checkpoint(older, *SMALL, words=("one", "two"), step=7)
    newest.write_bytes(older.read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*resumes from step_0000007\.ckpt"):
        read_newest(newest)
    older.unlink()
    with pytest.raises(ValueError, match=r"step_0000011\.ckpt .*Delete it, and the same command starts anew"):
        read_newest(newest)
