"""A row of a sweep is stopped where it is behind those beside it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiayn.callbacks.averaging import stopped_by
from aiayn.callbacks.halving import Halving
from aiayn.identity import ENDS, differing, row


def kept(folder: Path, row: str, step: int, log_p: float) -> None:
    """The likelihoods that another row has left."""
    place = folder / row / "likelihoods"
    place.mkdir(parents=True, exist_ok=True)
    np.savez(place / f"step_{step:07d}.npz", dev=np.array([[log_p * 2, 2], [log_p * 3, 3]], dtype=np.float32))


def validated(folder: Path, step: int, log_p: float) -> Any:
    """The trainer behind a validation of the row `own`."""
    callback = Halving(str(folder / "own" / "likelihoods"), reduction=2, least=0.1)
    trainer: Any = SimpleNamespace(
        global_step=step,
        max_steps=1000,
        val_check_interval=100,
        is_global_zero=True,
        should_stop=False,
        callbacks=[callback],
        strategy=SimpleNamespace(broadcast=lambda value: value),
    )
    module: Any = SimpleNamespace(likelihoods={"dev": np.array([[log_p * 2, 2], [log_p * 3, 3]])})
    callback.on_validation_end(trainer, module)
    return trainer


def test_a_row_behind_the_others_is_stopped_at_a_rung_with_the_reason(tmp_path: Path) -> None:
    for name, log_p in (("a", -2.0), ("b", -3.0), ("c", -4.0)):
        kept(tmp_path, name, 300, log_p)
        kept(tmp_path, name, 400, log_p)
    kept(tmp_path, "own", 300, -9.0)  # is no other
    other_pieces = tmp_path / "d" / "likelihoods" / "step_0000300.npz"
    other_pieces.parent.mkdir(parents=True)
    np.savez(other_pieces, dev=np.array([[-0.1, 3], [-0.1, 2]]))  # nor is one with another vocabulary
    assert not validated(tmp_path, 300, -2.5).should_stop  # the first validation at or behind 250
    stopped = validated(tmp_path, 300, -3.5)
    assert stopped.should_stop
    assert stopped_by(stopped) == (
        "callbacks.halving: at step 300 its dev log-likelihood, -3.500, is not among the best 1/2 of 3 others"
    )
    assert not validated(tmp_path, 400, -3.5).should_stop  # no rung
    assert not validated(tmp_path, 500, -9.0).should_stop  # where no other has been yet


def test_a_stopped_row_is_the_same_experiment_without_the_rule() -> None:
    ruled = {"callbacks": {"halving": {"reduction": 2}}, "seed": 1}
    assert differing(ruled, {"seed": 1}) == ["callbacks.halving.reduction"]
    assert not differing(ruled, {"seed": 1}, but=ENDS)


def test_a_row_has_the_same_folder_with_and_without_the_rule() -> None:
    assert row(["seed=2", "callbacks=halving", "callbacks.halving.least=0.2"], "bleu") == row(["seed=2"], "bleu")
    assert row(["seed=2", "callbacks=early_stopping"], "bleu") != row(["seed=2"], "bleu")


def test_settings_are_refused_before_the_training() -> None:
    with pytest.raises(ValueError, match=r"callbacks\.halving\.reduction must be 2 or more, got 1"):
        Halving("x", reduction=1, least=0.1)
