"""What the LightningModule logs, and what it does to gradients, in training of a few small batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Batches, composed
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from omegaconf import OmegaConf

from aiayn.callbacks.speed import TrainingSpeed
from aiayn.data.batching import Batch
from aiayn.model.model import Model
from aiayn.training.module import TranslationModule
from aiayn.training.schedule.inverse_sqrt import learning_rate
from aiayn.training.trainer import build_trainer

pytestmark = pytest.mark.filterwarnings("ignore")
Build = Callable[..., Model]
SCHEDULE = ["model.d_model=22", "training.warmup_steps=3", "training.learning_rate_scale=0.7"]


def recipe(*overrides: str, folder: Path | None = None) -> dict[str, Any]:
    """Optimizer, schedule and loss of a command line."""
    parts = composed(*SCHEDULE, "model.heads=2", *overrides, folder=folder).training
    return {part: instantiate(parts[part], _convert_="all") for part in ("optimizer", "schedule", "loss")}


def batches() -> Batches:
    """13 batches of random ids."""
    generator = torch.Generator().manual_seed(1)
    pairs = [torch.randint(5, 29, (2, 3, 7), generator=generator) for _ in range(13)]
    return Batches([Batch.of(source.numpy(), target.numpy(), np.arange(3), 18) for source, target in pairs])


class Lines(CSVLogger):
    """Keeps what it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines[(step or 0) + 1] = metrics


def train(
    build: Build, folder: Path, *, steps: int, resume: Path | None = None, parts: Any = None, **settings: Any
) -> Lines:
    """Lines of the log, by step; each step leaves a checkpoint in the folder."""
    module = TranslationModule(build(), **(parts or recipe()), log_steps=5, seed=1, contents={})
    logger = Lines(folder)
    speed = TrainingSpeed(5, "bleu")
    keep = ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=True
    )
    callbacks = [speed, *settings.pop("callbacks", []), keep]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=logger,
        callbacks=callbacks,
        log_every_n_steps=5,
        limit_val_batches=0,
        **quiet,
        **settings,
    )
    trainer.fit(module, batches(), ckpt_path=resume, weights_only=False)
    return logger


def test_the_learning_rate_that_is_logged_is_the_one_that_the_step_used(build: Build, tmp_path: Path) -> None:
    lines = train(build, tmp_path, steps=10).lines
    rate = {step: learning_rate(step, d_model=22, warmup_steps=3, learning_rate_scale=0.7) for step in (5, 10)}
    assert {step: line["train/learning_rate"] for step, line in lines.items()} == pytest.approx(rate)


def own(folder: Path, **parts: str) -> list[str]:
    """Write files of one's own, one for each part, and choose them."""
    for part, text in parts.items():
        (folder / "training" / part).mkdir(parents=True)
        (folder / "training" / part / "mine.yaml").write_text(f"_partial_: true\n{text}\n")
    return [f"training/{part}=mine" for part in parts]


def squared(features: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, power: float) -> Any:
    """A loss of one's own."""
    loss = (1 - (features @ weight.t()).softmax(1)[torch.arange(len(labels)), labels]).pow(power).sum()
    return loss, loss.detach()


def test_optimizer_schedule_and_loss_are_a_file_each(build: Build, tmp_path: Path) -> None:
    chosen = own(
        tmp_path / "conf",
        optimizer="_target_: torch.optim.AdamW\nlr: 0.5\nweight_decay: 0.03\nbetas: ${training.betas}",
        schedule="_target_: torch.optim.lr_scheduler.LinearLR\nstart_factor: 0.25\ntotal_iters: 6",
        loss=f"_target_: {__name__}.squared\npower: 2",
    )
    parts = recipe(*chosen, folder=tmp_path / "conf")
    module = TranslationModule(build(), **parts, log_steps=5, seed=1, contents={})
    optimizer: Any = module.configure_optimizers()["optimizer"]  # type: ignore[index]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["weight_decay"] == 0.03
    lines = train(build, tmp_path, steps=10, parts=parts).lines
    rates = {step: line["train/learning_rate"] for step, line in lines.items()}
    assert rates == pytest.approx({5: 0.5 * (0.25 + 0.75 * 4 / 6), 10: 0.5})
    assert 0 < lines[5]["train/loss"] <= 1  # in squares, not in nats, of which a word of 29 has more
    assert train(build, tmp_path / "paper", steps=10).lines[5]["train/loss"] > 1


def test_what_an_optimizer_refuses_is_a_line_with_its_key(build: Build) -> None:
    parts = recipe("training.optimizer.lr=-1")
    with pytest.raises(ValueError, match=r"training\.optimizer.*: Invalid learning rate: -1"):
        TranslationModule(build(), **parts, log_steps=5, seed=1, contents={}).configure_optimizers()


@pytest.mark.parametrize("step", [3, 5, 13, 14])
def test_a_line_behind_a_resumption_covers_what_it_would_have(build: Build, tmp_path: Path, step: int) -> None:
    whole = train(build, tmp_path / "whole", steps=16).lines
    resume = tmp_path / "whole" / f"step={step}.ckpt"
    resumed = train(build, tmp_path / "resumed", steps=16, resume=resume).lines
    assert resumed.keys() == {at for at in whole if at > step}
    for at, line in resumed.items():
        assert {key: value for key, value in line.items() if "second" not in key} == {
            key: value for key, value in whole[at].items() if "second" not in key
        }


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("norm", [None, 0.07])
def test_gradients_are_no_longer_than_their_common_norm(
    build: Build, tmp_path: Path, precision: Any, norm: float | None
) -> None:
    norms = []

    def measure(trainer: Trainer, module: TranslationModule, *_: Any) -> None:
        norms.append(torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm().item())

    look = LambdaCallback(on_before_zero_grad=lambda *_: None, on_train_batch_end=measure)
    train(build, tmp_path, steps=3, precision=precision, gradient_clip_val=norm, callbacks=[look])
    assert len(norms) == 3
    assert all(found == pytest.approx(norm, rel=1e-4) if norm else found > 0.2 for found in norms), norms


def refusal(*overrides: str) -> str:
    config: Any = OmegaConf.to_container(composed(*SMALL, *overrides))
    with pytest.raises(ValueError, match="trainer") as error:
        build_trainer(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_has_a_key_here_is_not_told_to_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set training.gradient_clip_norm" in refusal("+trainer.gradient_clip_val=1")
    assert "set training.max_epochs" in refusal("+trainer.max_epochs=3")
    monkeypatch.setattr("aiayn.training.trainer.Trainer.precision", "16-mixed")  # as it is on a GPU
    assert "cannot be kept with trainer.precision=16-mixed" in refusal(
        "training.gradient_clip_norm=1", "trainer.precision=16-mixed"
    )


def test_the_passes_over_the_corpus_end_the_training() -> None:
    config: Any = OmegaConf.to_container(composed(*SMALL, "training.max_epochs=3", "training.gradient_clip_norm=0.7"))
    trainer = build_trainer(config)
    assert (trainer.max_epochs, trainer.max_steps, trainer.gradient_clip_val) == (3, 24, 0.7)
