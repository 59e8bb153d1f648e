"""What the LightningModule logs, and what it does to gradients, in training of a few small batches."""

import math
from collections.abc import Callable, Sequence
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
from small_model import MODEL
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from aiayn.callbacks.speed import TrainingSpeed
from aiayn.checkpoints.building import build
from aiayn.data.batching import TENSORS, Batch, PairDataset, Step
from aiayn.model.model import Model, Outputs
from aiayn.training.module import LOGGED, TrainingModule, losses
from aiayn.training.schedule.inverse_sqrt import learning_rate
from aiayn.training.trainer import build_trainer, compile_layers

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
    made = [Batch.of(source.numpy(), target.numpy(), np.arange(3)) for source, target in pairs]
    return Batches([Step((batch,), 18) for batch in made])


class Lines(CSVLogger):
    """Keeps what it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines[(step or 0) + 1] = metrics


def train(
    build: Build,
    folder: Path,
    *,
    steps: int,
    resume: Path | None = None,
    parts: Any = None,
    data: Any = None,
    **settings: Any,
) -> Lines:
    """Lines of the log, by step; each step leaves a checkpoint in the folder."""
    module = TrainingModule(build(), **(parts or recipe()), log_steps=5, seed=1, contents={})
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
    trainer.fit(module, data or batches(), ckpt_path=resume, weights_only=False)
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
    module = TrainingModule(build(), **parts, log_steps=5, seed=1, contents={})
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
        TrainingModule(build(), **parts, log_steps=5, seed=1, contents={}).configure_optimizers()


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

    def measure(trainer: Trainer, module: TrainingModule, *_: Any) -> None:
        norms.append(torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm().item())

    look = LambdaCallback(on_before_zero_grad=lambda *_: None, on_train_batch_end=measure)
    train(build, tmp_path, steps=3, precision=precision, gradient_clip_val=norm, callbacks=[look])
    assert len(norms) == 3
    assert all(found == pytest.approx(norm, rel=1e-4) if norm else found > 0.2 for found in norms), norms


def joined(batches: Sequence[Batch]) -> Batch:
    arrays = [torch.cat([getattr(batch, name) for batch in batches]).numpy() for name in TENSORS[:3]]
    return Batch.of(*arrays)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_micro_batches_add_up_to_their_step(build: Build, tmp_path: Path, precision: Any) -> None:
    """Batches of 1, 2 and 4 micro-batches: the same gradients, losses and rates, but for rounding."""
    singles = [step.batches[0] for step in batches().all[:12]]
    found, lines = [], []
    for size in (1, 2, 4):
        steps = []
        for start in range(0, 12, 4):
            parts = [joined(singles[i : i + 4 // size]) for i in range(start, start + 4, 4 // size)]
            steps.append(Step(tuple(parts), 72))
        gradients: list[torch.Tensor] = []

        def measure(trainer: Trainer, module: Any, *_: Any, into: list[torch.Tensor] = gradients) -> None:
            into.append(torch.cat([parameter.grad.flatten() for parameter in module.parameters()]))

        look = LambdaCallback(on_before_optimizer_step=measure)
        slow = recipe("training.learning_rate_scale=1e-9")  # so that rounding does not grow
        logged = train(build, tmp_path, steps=5, parts=slow, data=Batches(steps), precision=precision, callbacks=[look])
        found.append(torch.stack(gradients))
        lines.append(logged.lines[5]["train/loss"])
    close = 1e-5 if precision == "32-true" else 0.02
    assert lines[1:] == pytest.approx(lines[:1] * 2, rel=close)
    for other in found[1:]:
        assert (other - found[0]).norm() < close * found[0].norm()


def test_auxiliary_losses_are_trained_divided_and_logged(build: Build, tmp_path: Path) -> None:
    def with_loss(coefficient: float) -> dict[str, float]:
        model = build()
        forward = model.forward

        def both(batch: Batch) -> Outputs:
            features, _ = forward(batch)
            return Outputs(features, {"norm": coefficient * features.flatten(0, 1)[batch.positions].square().sum()})

        model.forward = both
        return train(lambda: model, tmp_path, steps=10).lines[10]

    little, much = with_loss(1e-6), with_loss(0.25)
    assert 0 < much["train/norm"] / 0.25 < little["train/norm"] / 1e-6 < 22 * 1.5  # a token's; it is trained
    assert little["train/loss"] == pytest.approx(math.log(little["train/perplexity"]), abs=0.2)
    assert much["train/loss"] - much["train/norm"] == pytest.approx(math.log(much["train/perplexity"]), abs=0.2)


def with_auxiliary(model: Model, *names: str) -> Model:
    """The same model; pass by pass it has a loss of another of the names, the sum of its features."""
    forward, passes = model.forward, iter(names)
    model.forward = lambda batch: Outputs((features := forward(batch).features), {next(passes): features.sum()})
    return model


@pytest.mark.parametrize("name", LOGGED)
def test_an_auxiliary_loss_cannot_have_the_name_of_another_figure(build: Build, name: str) -> None:
    with pytest.raises(ValueError, match=f"an auxiliary loss cannot be called {name}, as train/{name} is logged"):
        losses(with_auxiliary(build(), name), batches().all[0].batches[0], recipe()["loss"])


def test_figures_of_training_are_known_by_their_names(build: Build, tmp_path: Path) -> None:
    assert {f"train/{name}" for name in LOGGED} >= train(build, tmp_path, steps=10).lines[10].keys() - {"epoch"}


def test_auxiliary_losses_that_change_their_names_are_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same names in every step, got other, nll, loss after balance, nll, loss"):
        train(lambda: with_auxiliary(build(), "balance", "balance", "other"), tmp_path, steps=5)


def test_the_filler_of_a_share_adds_to_no_loss(build: Build) -> None:
    filler = PairDataset(None).batch(np.array([-1]))  # type: ignore[arg-type]
    found = losses(with_auxiliary(build(), "balance"), filler, recipe()["loss"])
    assert found == {"balance": 0, "nll": 0, "loss": 0}
    found["loss"].backward()  # every replica has a gradient, be it of zeros


@pytest.mark.parametrize("found", [None, torch.ones(()), (torch.ones(3), torch.ones(3)), (1.0, 1.0)], ids=str)
def test_a_loss_that_gives_no_two_sums_is_refused(build: Build, found: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"two sums over the tokens|unpack|iterat"):
        losses(build(), batches().all[0].batches[0], lambda *_: found)


def test_a_training_that_diverges_ends_where_it_is_logged(build: Build, tmp_path: Path) -> None:
    parts = recipe("training.learning_rate_scale=1e30")
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step 5: the training has diverged; .* lower "):
        train(build, tmp_path, steps=10, parts=parts)


def test_a_step_asks_the_device_for_nothing() -> None:
    """Fake tensors have no values: whatever asks for one raises."""
    with FakeTensorMode():
        model = build(MODEL, vocab_size=29)
        source, target = torch.ones(3, 7, dtype=torch.long), torch.ones(3, 6, dtype=torch.long)
        batch = Batch(source, target, torch.arange(3), positions=torch.ones(11, dtype=torch.long), padded=True)
        for autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                losses(model, batch, recipe()["loss"])["loss"].backward()
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool(torch.ones(3).all())


@pytest.mark.slow
def test_compiled_layers_train_and_leave_what_an_uncompiled_model_opens(build: Build, tmp_path: Path) -> None:
    made: list[Model] = []

    def compiled() -> Model:
        made.append(build(dropout=0.3).train())
        compile_layers(made[0], "eager")
        return made[0]

    before = counters["frames"]["ok"]
    lines = train(compiled, tmp_path / "compiled", steps=10).lines
    assert counters["frames"]["ok"] > before
    plain = train(lambda: build(dropout=0.3).train(), tmp_path / "plain", steps=10).lines
    assert lines[10]["train/loss"] < lines[5]["train/loss"]
    assert lines[5]["train/loss"] != plain[5]["train/loss"]  # other draws; so it is part of the experiment
    state = torch.load(tmp_path / "compiled" / "step=10.ckpt", weights_only=False)["state_dict"]
    model = build(seed=2)
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    batch = batches().all[0].batches[0]
    torch.testing.assert_close(made[0].eval()(batch).features, model(batch).features)


def test_what_cannot_be_compiled_is_refused() -> None:
    assert "trainer.compile must be true, false or one of" in refusal("trainer.compile=flase")
    with pytest.raises(ValueError, match=r"trainer\.compile=True: .* Linear has no Stack"):
        compile_layers(torch.nn.Linear(2, 3), True)


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
