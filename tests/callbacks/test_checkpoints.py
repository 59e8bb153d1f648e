"""What a run keeps, averages and calls best, however it was killed, extended, moved or stopped: toys of one weight."""

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Batches
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.callbacks import EarlyStopping as StockEarlyStopping

from aiayn.callbacks.averaging import CheckpointAveraging
from aiayn.callbacks.best import BestCheckpoint
from aiayn.callbacks.early_stopping import EarlyStopping
from aiayn.callbacks.ema import ExponentialMovingAverage
from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.checkpoint_io import AtomicCheckpointIO
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.metrics.chrf import Chrf
from aiayn.evaluation.metrics.ter import Ter
from aiayn.runs.run_folder import step_checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
EPOCH = 13  # micro-batches; no multiple of what lies between checkpoints or validations
BLEU = {step: step % 21 for step in range(99)}  # the best is at 20, where there is a checkpoint too


METRICS = {"bleu": Bleu()}


class Killed(BaseException):
    """Ends a run as a signal does: nothing is tidied up."""


class Toy(LightningModule):
    """A weight that changes by another amount at each step; dev BLEU is what the test says."""

    def __init__(self, bleu: Mapping[int, float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.bleu = bleu

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return -(self.weight * batch * (self.global_step + 1)).sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("dev/bleu", self.bleu[self.global_step], batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(config={"model": {}}, tokenizer=torch.zeros(1, dtype=torch.uint8), tokenizer_hash="")


def run(
    folder: Path,
    *,
    max_steps: int,
    more: Iterable[Callback] = (),
    last: Iterable[Callback] = (),
    bleu: Mapping[int, float] = BLEU,
    every: int = 4,
    keep: int = 5,
    validate: int = 5,
    weights_only: bool = True,
    minutes: float | None = None,
    **settings: Any,
) -> Trainer:
    """Train from the newest checkpoint of the folder, as the task does."""
    schedule = {"minutes": minutes} if minutes else {"steps": every}
    best = BestCheckpoint(str(folder), objective="bleu", metrics=METRICS, weights_only=weights_only)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        val_check_interval=validate,
        check_val_every_n_epoch=None,
        callbacks=[*more, CheckpointAveraging(str(folder), keep=keep, **schedule), best, *last],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": -1, **settings},
    )
    newest = list(step_checkpoints(folder).values())[-1:]
    train = Batches(torch.arange(EPOCH))
    trainer.fit(Toy(bleu), train, [torch.ones(1)], ckpt_path=newest[0] if newest else None, weights_only=True)
    return trainer


def kept(folder: Path) -> list[int]:
    return list(step_checkpoints(folder))


def averaged(folder: Path) -> list[int]:
    return checkpoint.read_raw(folder / "averaged.ckpt")["averaged_steps"]


def best(folder: Path) -> tuple[int, float]:
    found = checkpoint.read_raw(folder / "best.ckpt")
    assert found["best"]["step"] == found["global_step"]
    return found["global_step"], found["best"]["score"]


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same weights and optimizer, bit for bit."""
    if sorted(path.name for path in one.iterdir()) != sorted(path.name for path in other.iterdir()):
        return False
    for path in one.iterdir():
        ours, theirs = (checkpoint.read_raw(folder / path.name) for folder in (one, other))
        parts = ("state_dict", "current_model_state", "optimizer_states", "best", "averaged_steps", "scheduled")
        if any(str(ours.get(part)) != str(theirs.get(part)) for part in parts):
            return False
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, max_steps=40)
    return folder


def test_the_last_of_the_schedule_and_the_final_weights_are_averaged(whole: Path, tmp_path: Path) -> None:
    assert averaged(whole) == kept(whole) == [24, 28, 32, 36, 40]
    mean = sum(checkpoint.read_raw(path)["state_dict"]["weight"] for path in step_checkpoints(whole).values()) / 5
    torch.testing.assert_close(checkpoint.read_raw(whole / "averaged.ckpt")["state_dict"]["weight"], mean)
    run(tmp_path, max_steps=30)
    assert averaged(tmp_path) == kept(tmp_path) == [16, 20, 24, 28, 30]


def test_no_checkpoint_is_left_out_where_an_epoch_ends(tmp_path: Path) -> None:
    run(tmp_path, max_steps=29, every=1, keep=99)
    assert kept(tmp_path) == list(range(1, 30))


@pytest.mark.parametrize("ends", [(30,), (9, 10, 11, 30), (28,), (37, 38, 39)], ids=str)
def test_a_run_that_is_extended_ends_as_one_that_went_straight(whole: Path, tmp_path: Path, ends: tuple) -> None:
    for end in (*ends, 40):
        run(tmp_path, max_steps=end)
    assert same(tmp_path, whole)


def test_a_damaged_older_checkpoint_is_named_with_what_helps(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "step_0000036.ckpt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"step_0000036\.ckpt .*Delete it, and the same command goes on"):
        run(folder, max_steps=44)


def killer(hook: str, step: int) -> Callback:
    def kill(self: Callback, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step >= step:
            raise Killed

    # Lightning calls a Checkpoint behind the other callbacks.
    return type("Killer", (Checkpoint,), {hook: kill})()


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_start", 1),
        ("on_train_batch_start", 24),  # just behind a checkpoint
        ("on_validation_start", 20),  # a step with a checkpoint too
        ("on_validation_end", 20),  # behind the best one
        ("on_validation_end", 40),
        ("on_train_epoch_end", 26),  # where an epoch ends
        ("on_train_end", 40),
    ],
)
def test_a_run_that_is_killed_and_moved_ends_as_one_that_is_not(
    whole: Path, tmp_path: Path, hook: str, step: int
) -> None:
    with pytest.raises(Killed):
        run(tmp_path / "killed", max_steps=40, last=[killer(hook, step)])
    (tmp_path / "killed").mkdir(exist_ok=True)
    (tmp_path / "killed").rename(tmp_path / "moved")
    run(tmp_path / "moved", max_steps=40)
    assert same(tmp_path / "moved", whole)


def test_the_best_is_written_before_the_checkpoint_that_the_run_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = CheckpointAveraging._save

    def save_and_die(self: CheckpointAveraging, trainer: Trainer, **settings: Any) -> None:
        save(self, trainer, **settings)
        if trainer.global_step == 20:  # a validation too, the best
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointAveraging, "_save", save_and_die)
        with pytest.raises(Killed):
            run(tmp_path, max_steps=40)
    assert kept(tmp_path)[-1] == 20
    run(tmp_path, max_steps=40)
    assert best(tmp_path) == (20, 20)


def test_a_moving_average_is_killed_without_harm(tmp_path: Path) -> None:
    def go(folder: Path, *last: Callback) -> None:
        average = ExponentialMovingAverage(decay=0.7)
        run(folder, max_steps=23, more=[average], last=last, weights_only=False)

    go(tmp_path / "whole")
    for step in (5, 20):
        with pytest.raises(Killed):
            go(tmp_path / "killed", killer("on_validation_start", step))
    go(tmp_path / "killed")
    assert same(tmp_path / "killed", tmp_path / "whole")


def test_the_average_is_made_by_who_comes_behind_a_kill(whole: Path, tmp_path: Path) -> None:
    run(tmp_path, max_steps=40)
    (tmp_path / "averaged.ckpt").unlink()
    run(tmp_path, max_steps=40)
    assert same(tmp_path, whole)


def test_the_best_stays_when_the_run_goes_on(whole: Path, tmp_path: Path) -> None:
    assert best(whole) == (20, 20)
    run(tmp_path, max_steps=20)
    assert best(tmp_path) == (20, 20)
    run(tmp_path, max_steps=40, bleu={**BLEU, 25: 20, 30: 20.5, 35: 20.25})
    assert best(tmp_path) == (30, 20.5)


def test_the_best_stays_when_the_run_goes_back(tmp_path: Path) -> None:
    run(tmp_path, max_steps=20)
    for path in list(step_checkpoints(tmp_path).values())[1:]:
        path.unlink()
    run(tmp_path, max_steps=20, bleu={**BLEU, 20: 3})
    assert best(tmp_path) == (20, 20)


def test_a_run_that_starts_anew_has_no_best_yet(tmp_path: Path) -> None:
    run(tmp_path, max_steps=12)
    for path in step_checkpoints(tmp_path).values():
        path.unlink()
    run(tmp_path, max_steps=3)
    assert not (tmp_path / "best.ckpt").exists()


def test_the_best_may_be_the_least(tmp_path: Path) -> None:
    scores = {5: 3.0, 10: float("nan"), 15: 2.0, 20: 2.0}
    callback = BestCheckpoint(str(tmp_path), objective="bleu", metrics={"bleu": Ter()}, weights_only=True)
    run(tmp_path / "x", max_steps=20, more=[callback], bleu=scores)
    assert best(tmp_path) == (15, 2.0)


def test_what_is_not_measured_cannot_be_best(tmp_path: Path) -> None:
    callback = BestCheckpoint(str(tmp_path), objective="chrf", metrics={"chrf": Chrf()}, weights_only=True)
    with pytest.raises(ValueError, match=r"the objective, dev/chrf, is not measured in training; there are: dev/bleu"):
        run(tmp_path, max_steps=5, more=[callback])


def test_a_score_that_is_no_number_is_never_best_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, max_steps=11, bleu={5: math.nan, 10: 23.0})
    assert best(tmp_path) == (10, 23.0)
    assert "dev/bleu is nan at step 5, and so not the best" in caplog.text


class Unreadable(Callback):
    """Keeps what cannot be read without running code."""

    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("x")}


def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the callback Unreadable keeps what no checkpoint can hold; let its"):
        run(tmp_path, max_steps=5, more=[Unreadable()])
    assert kept(tmp_path) == []


def test_files_of_other_names_are_nobodys_business(whole: Path, tmp_path: Path) -> None:
    run(tmp_path, max_steps=30)
    copies = ["step_backup.ckpt", "step_0000028 (copy).ckpt", "step_28.ckpt", "step_0000099.ckpt.bak"]
    for name in copies:
        shutil.copy(tmp_path / "step_0000028.ckpt", tmp_path / name)
    run(tmp_path, max_steps=40)
    for name in copies:
        (tmp_path / name).unlink()
    assert same(tmp_path, whole)


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (10_000_000, 9_999_999, 3):
        (tmp_path / f"step_{step:07d}.ckpt").touch()
    assert kept(tmp_path) == [3, 9_999_999, 10_000_000]


def test_a_checkpoint_that_does_not_say_it_is_judged_by_its_step(whole: Path, tmp_path: Path) -> None:
    run(tmp_path, max_steps=30)
    for path in step_checkpoints(tmp_path).values():
        content = checkpoint.read_raw(path)
        checkpoint.write(path, {key: value for key, value in content.items() if key not in ("scheduled", "stopped")})
    run(tmp_path, max_steps=40)
    assert averaged(tmp_path) == averaged(whole)


def test_the_clock_may_say_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 9999, 7))  # seconds: training begins, and the end of each step
    monkeypatch.setattr("aiayn.callbacks.averaging.time", SimpleNamespace(monotonic=lambda: next(now)))
    run(tmp_path, max_steps=11, minutes=0.3, keep=3)
    assert averaged(tmp_path) == kept(tmp_path) == [6, 9, 11]
    run(tmp_path, max_steps=13, minutes=0.3, keep=3)
    assert averaged(tmp_path) == kept(tmp_path) == [6, 9, 13]


def test_fewer_checkpoints_than_asked_for_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, max_steps=9)
    assert averaged(tmp_path) == [4, 8, 9]
    assert "the run has 3 of training.keep_checkpoints=5 checkpoints to average" in caplog.text


@pytest.mark.parametrize(("steps", "minutes"), [(None, None), (5, 10)])
def test_one_schedule_must_be_chosen(steps: int | None, minutes: float | None) -> None:
    with pytest.raises(ValueError, match=rf"checkpoint_steps={steps} and training.checkpoint_minutes={minutes}"):
        CheckpointAveraging("x", keep=5, steps=steps, minutes=minutes)


def stopped(folder: Path) -> str:
    return checkpoint.read_raw(list(step_checkpoints(folder).values())[-1])["stopped"]


@pytest.mark.parametrize(
    "callback",
    [
        EarlyStopping(objective="bleu", metrics=METRICS, patience=3),
        StockEarlyStopping("dev/bleu", mode="max", patience=3),
    ],
    ids=["ours", "Lightning's"],
)
def test_a_run_that_gets_no_better_ends_where_it_was_validated(tmp_path: Path, callback: Callback) -> None:
    scores = dict(zip(range(3, 99, 3), (1, 2, 2, 2, 3, 2, 1, 0, 0), strict=False))
    run(tmp_path, max_steps=40, validate=3, bleu=scores, more=[callback])
    assert averaged(tmp_path) == kept(tmp_path) == [8, 12, 16, 20, 24]
    assert best(tmp_path) == (15, 3)
    assert stopped(tmp_path) == "Monitored metric dev/bleu did not improve in the last 3 records. Best score: 3.000."


def test_patience_counts_over_resumptions_and_can_be_raised(tmp_path: Path) -> None:
    scores = dict(zip(range(3, 99, 3), (1, 2, 2, 2, 3, 2, 1, 0, 0, 0, 0), strict=False))

    def go(patience: int, *last: Callback) -> int:
        early = EarlyStopping(objective="bleu", metrics=METRICS, patience=patience)
        return run(tmp_path, max_steps=40, validate=3, bleu=scores, more=[early], last=last).global_step

    with pytest.raises(Killed):
        go(3, killer("on_validation_start", 21))
    assert go(3) == 24
    assert go(5) == 30


def test_a_stop_leaves_its_reason(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = trainer.fit_loop.total_batch_idx == 5  # the sixth step

    run(tmp_path, max_steps=40, more=[Stop()])
    assert kept(tmp_path) == [4, 6]
    assert stopped(tmp_path) == "a callback"
    assert best(tmp_path) == (6, 6)  # it is validated there
    run(tmp_path, max_steps=8)
    run(tmp_path / "whole", max_steps=8)
    final = [
        checkpoint.read_raw(folder / "step_0000008.ckpt")["state_dict"] for folder in (tmp_path, tmp_path / "whole")
    ]
    assert final[0] == final[1]


def test_a_time_limit_and_passes_over_the_corpus_end_a_run(tmp_path: Path) -> None:
    run(tmp_path / "time", max_steps=10**6, max_time={"seconds": 0.2}, every=10**5, bleu=defaultdict(float))
    assert "the time limit, after 0 s" in stopped(tmp_path / "time")
    assert len(averaged(tmp_path / "time")) == 1
    with pytest.raises(Killed):
        run(tmp_path / "epochs", max_steps=40, max_epochs=2, every=EPOCH, last=[killer("on_train_batch_start", EPOCH)])
    run(tmp_path / "epochs", max_steps=40, max_epochs=2)
    assert averaged(tmp_path / "epochs")[-1] == 2 * EPOCH
    assert stopped(tmp_path / "epochs") == "training.max_epochs=2 passes over the corpus"
    run(tmp_path / "epochs", max_steps=40, max_epochs=5)
    assert averaged(tmp_path / "epochs") == [24, 28, 32, 36, 40]
    assert stopped(tmp_path / "epochs") is None


def test_a_run_that_is_stopped_before_its_first_step_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stopped before its first step"):
        run(tmp_path, max_steps=10, max_time={"seconds": 0})


def test_a_patience_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"callbacks\.early_stopping\.patience must be 1 or more, got 0"):
        EarlyStopping(objective="bleu", metrics=METRICS, patience=0)
