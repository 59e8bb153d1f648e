"""task=train: prepare, train, then evaluate the last, the best and the averaged checkpoint."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from omegaconf import DictConfig, OmegaConf

from aiayn.arguments import check_arguments
from aiayn.callbacks.speed import TrainingSpeed
from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.building import UndescribedError, build, described
from aiayn.commands.evaluate import evaluate_splits, show
from aiayn.cost.counting import parameters
from aiayn.data.step_size import FEWEST_STEPS, StepSize, accumulation_steps
from aiayn.evaluation.metric import Metric
from aiayn.identity import claims_hashes, settings
from aiayn.model.model import Model
from aiayn.problems.problem import Problem, problem_of
from aiayn.runs.run import resolved
from aiayn.runs.run_folder import RunFolder, step_checkpoints
from aiayn.training import initialization
from aiayn.training.tracking import loggers
from aiayn.training.trainer import build_trainer, compile_layers, quiet_lightning, replica_of

log = logging.getLogger(__name__)

TWIN = ("model", "training", "data", "inference")  # in which a twin may differ from its row


def train(cfg: DictConfig) -> float | None:
    """Train until `training.max_steps`, resuming what the folder holds, and evaluate.

    Returns:
        The objective on dev of the averaged checkpoint, for sweepers that optimise; None on ranks that do not evaluate.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    del config["trust"]  # the reader's, which no file remembers
    check_arguments(config)
    quiet_lightning()
    overrides = HydraConfig.get().overrides
    if "TORCHELASTIC_RUN_ID" in os.environ and "run_dir=" not in " ".join([*overrides.task, *overrides.hydra]):
        raise ValueError("give run_dir=... under torchrun: its ranks would not agree on a name made of the time.")
    problem = problem_of(cfg)
    with suppress(UndescribedError):  # illegal sizes are refused before the run begins
        described(config["model"], **problem.asked_sizes())
    metrics = instantiate(config["metrics"])
    folder = RunFolder(Path(cfg.run_dir), config)
    first_rank = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if first_rank:
        folder.lock()
    changed = ", ".join(folder.changed)
    anew = bool(changed) and config["force"]
    if folder.done and not anew:
        stopped = f" ({folder.result['stopped']})" if folder.result.get("stopped") else ""
        log.info("%s is done: %d steps%s; nothing to do.", folder.path, folder.result["steps"], stopped)
        if changed:
            log.warning("it is stale: %s changed since; force=true removes its results and begins anew.", changed)
        return dev_objective(folder)
    if (path := config["training"]["initialize"]) and (anew or not folder.latest):
        initialization.read(Path(path))  # refused before a corpus is prepared, or results are removed
    trainer = build_trainer(config)
    if anew:
        problem.prepare()
        with suppress(UndescribedError):  # a text that is refused costs no results
            build_model(config, problem, build=described)
        folder.begin_anew(first_rank=first_rank)
        log.warning("%s begins anew, its old results are removed: %s changed since.", folder.path, changed)
    log.info("run folder: %s", folder.path)
    for line in twin_differences(cfg):
        log.info("%s", line)
    try:
        folder.check_kept()
        folder.check_text()
        with loggers(config.get("logger", {}), folder.path, config) as trainer.loggers:
            problem.prepare()
            fit(trainer, problem, folder)
            if not trainer.is_global_zero:
                return None
            evaluate_run(trainer, problem, folder, metrics)
    except Exception as error:
        # A run that was done, and that is refused now, stays done.
        if first_rank and folder.result.get("status") != "done":
            folder.write(status="failed", error=" ".join(str(error).split()) or type(error).__name__, config=config)
        raise
    try:
        show(folder, problem)
    except (OSError, ValueError) as error:  # a run that is done has not failed
        log.warning("the run is done; what it has come to could not be printed: %s", error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at the end, and fails
    return dev_objective(folder)


def twin_differences(cfg: DictConfig) -> list[str]:
    """Where a smaller twin differs from the row that the paper has, a line for each part of the config."""
    if cfg.scale.name == "full":
        return []
    given = HydraConfig.get().overrides.task
    whole = compose("config", [one for one in given if not re.match(r"[+~]*(scale[.=]|data\.corpus\.)", one)])
    mine, theirs = (settings({part: of[part] for part in TWIN}) for of in map(resolved, (cfg, whole)))
    found: dict[str, list[str]] = {part: [] for part in TWIN}
    for key, value in mine.items():
        part, _, name = key.partition(".")
        if value != theirs.get(key) and not name.startswith("corpus."):
            found[part].append(f"{name} {value} ({theirs.get(key)})")
    lines = [f"{part}: {', '.join(one)}" for part, one in found.items() if one]
    return [f"scale={cfg.scale.name}: a smaller twin; the paper's row has what is in brackets", *lines] if lines else []


def dev_objective(folder: RunFolder) -> float:
    """What sweepers optimise."""
    return folder.result["scores"]["averaged"]["dev"][folder.config["objective"]]["value"]


def fit(trainer: Trainer, problem: Problem, folder: RunFolder) -> None:
    """Train from the folder's latest checkpoint, or from the start, with steps as in `StepSize.of`."""
    config = folder.config
    step = step_size(problem, folder)
    # Known only now that the Trainer knows its devices and the problem its longest example.
    replica = replica_of(trainer)
    accumulation = accumulation_steps(
        step.tokens_per_batch,
        config["data"]["tokens_per_device"],
        world_size=replica.count,
        longest=problem.longest("train"),
    )
    topology: dict[str, Any] = {"world_size": replica.count, "precision": trainer.precision}
    topology["accumulation"] = accumulation
    resume = folder.latest
    if resume:  # what does not fit is refused before anything is built
        prepare_resume(resume, trainer, problem, folder, topology=topology)
    if trainer.is_global_zero:
        kind = trainer.strategy.root_device
        folder.start(
            **topology,
            device=torch.cuda.get_device_name(kind) if kind.type == "cuda" else kind.type,
            threads=torch.get_num_threads(),  # sums come out otherwise with others
            corpus=problem.folder.name,
            **({} if resume else {"claims": claims_hashes()}),
            tokens_per_batch=step.tokens_per_batch,
            **step.figures,
        )
    seed_everything(config["seed"], verbose=False)
    model = build_model(config, problem)
    if config["training"]["initialize"] and not resume:
        begin_with_others(model, trainer, problem, folder)
    compile_layers(model, config["trainer"].get("compile"))
    size = parameters(model)
    log.info(
        "%s: %s parameters, %s examples, %d x %d micro-batches a step, %s%s",
        config["name"],
        f"{size:,}",
        f"{problem.size('train'):,}",
        replica.count,
        accumulation,
        trainer.precision,
        f", resumed from {resume.name}" if resume else "",
    )
    parts = {part: config["training"][part] for part in ("optimizer", "schedule", "loss")}
    module = problem.module(
        model,
        **instantiate(parts, _convert_="all"),
        log_steps=config["training"]["log_steps"],
        seed=config["seed"],
        contents=checkpoint.contents(config, problem.vocabularies),
        held_out=problem.held_out(),
        replica=replica,
    )
    batches = problem.batches(step, accumulation=accumulation, replica=replica)
    run_steps(trainer, module, batches, folder, resume=resume)
    if trainer.is_global_zero:
        folder.write(**training_cost(trainer, problem, config), **ending(folder), parameters=size)


def begin_with_others(model: Model, trainer: Trainer, problem: Problem, folder: RunFolder) -> None:
    """Give a model the weights that `training.initialize` names."""
    path = Path(folder.config["training"]["initialize"])
    initialized = initialization.initialize(model, problem.vocabularies, path)
    log.info("begins with the weights of %s, step %d", initialized["file"], initialized["step"])
    if trainer.is_global_zero:
        folder.write(initialized=initialized)


def run_steps(
    trainer: Trainer,
    module: LightningModule,
    batches: LightningDataModule,
    folder: RunFolder,
    *,
    resume: Path | None,
) -> None:
    """Let Lightning train; what ends it before its end is told as a user understands it.

    Raises:
        SystemExit: with the signal's number, if one has stopped it between two steps.
        ValueError: if a setting does not go with the others, or the device's memory is too small.
    """
    # Lightning's handler lets a step end; it would also call the one that it finds, which leaves at once.
    ends = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        trainer.fit(module, datamodule=batches, ckpt_path=resume, weights_only=True)
    except SystemExit as end:
        number = signal.SIGTERM if isinstance(end, SIGTERMException) else signal.SIGINT
        if number == signal.SIGINT and not trainer.interrupted:
            raise
        log.info("stopped at step %d; go on with run_dir='%s'", trainer.global_step, folder.path)
        raise SystemExit(128 + number) from None  # Lightning leaves with 0, as if the run were complete, or with 1
    except MisconfigurationException as error:
        raise ValueError(f"training: {' '.join(str(error).split())}") from error
    except torch.OutOfMemoryError as error:
        raise ValueError(
            "the device's memory does not hold a micro-batch of data.tokens_per_device="
            f"{folder.config['data']['tokens_per_device']}; lower it, which does not change the experiment."
        ) from error
    finally:
        signal.signal(signal.SIGTERM, ends)


def prepare_resume(
    path: Path, trainer: Trainer, problem: Problem, folder: RunFolder, *, topology: dict[str, Any]
) -> None:
    """See that the run can go on from its newest checkpoint; one that was stopped there only loads it.

    Raises:
        ValueError: if it cannot be read, or is of another experiment, corpus or topology.
    """
    saved = read_newest(path)
    folder.check_resumable(saved["config"], saved["global_step"], topology)
    folder.check_corpus(saved, tokenizer_hash=problem.vocabularies.hash, corpus=problem.folder.name)
    if folder.stays_stopped(saved.get("stopped"), saved["config"]):
        trainer.limit_train_batches = 0


def read_newest(path: Path) -> dict[str, Any]:
    """The checkpoint that a run resumes from.

    Raises:
        ValueError: if it cannot be read; it says what remains without it.
    """
    try:
        return checkpoint.read_raw(path)
    except ValueError as error:
        older = [earlier.name for earlier in step_checkpoints(path.parent).values() if earlier != path]
        remains = f"resumes from {older[-1]}" if older else "starts anew"
        raise ValueError(f"{error} Delete it, and the same command {remains}.") from error


def ending(folder: RunFolder) -> dict[str, Any]:
    """What has ended a run before `training.max_steps`, if anything has, and which steps were averaged."""
    assert folder.latest is not None
    averaged = checkpoint.read_raw(folder.checkpoints / "averaged.ckpt")["averaged_steps"]
    return {"stopped": checkpoint.read_raw(folder.latest).get("stopped"), "averaged_steps": averaged}


def build_model(config: dict[str, Any], problem: Problem, *, build: Callable[..., Model] = build) -> Model:
    """The untrained model, or, with `build=described`, one of shapes alone.

    Raises:
        ValueError: if it has no positions for the longest sentence.
    """
    model = build(config["model"], **problem.vocabularies.sizes)
    longest = max(map(problem.longest, problem.splits()))
    if model.longest is not None and model.longest < longest:
        raise ValueError(
            f"model.position.max_length={model.longest} is smaller than the longest sentence, {longest} tokens; "
            f"raise it, or shorten the text (data.cleaning.max_length for train)."
        )
    return model


def step_size(problem: Problem, folder: RunFolder) -> StepSize:
    """What a step holds, said in the log.

    Raises:
        ValueError: if it is not what it was when the run began: the position in an epoch is counted in such steps.
    """
    tokens_per_batch = folder.config["data"]["tokens_per_batch"]
    by_recipe = OmegaConf.is_interpolation(problem.cfg.data, "tokens_per_batch")
    step = problem.step_size(tokens_per_batch, fits_corpus=by_recipe)
    before = folder.result.get("tokens_per_batch", step.tokens_per_batch)
    if folder.latest and before != step.tokens_per_batch:
        raise ValueError(
            f"data.tokens_per_batch={step.tokens_per_batch} is not the {before} of the run in "
            f"run_dir={folder.path}: set it, or leave it to the recipe, as before; or choose another run_dir."
        )
    if step.tokens_per_batch < tokens_per_batch:
        log.warning(
            "data.tokens_per_batch=%d, the recipe's, would make fewer than %d steps of the corpus: it is %d here; "
            "set the key to have it otherwise",
            tokens_per_batch,
            FEWEST_STEPS,
            step.tokens_per_batch,
        )
    short = (
        f", {step.shortfall:.0%} below data.tokens_per_batch={step.tokens_per_batch}, which is the most; with "
        f"data.tokens_per_batch={step.enough} it would hold that on average"
    )
    log.info("a step holds %s on average%s", step.described, short if step.shortfall > 0.02 else "")
    return step


def training_cost(trainer: Trainer, problem: Problem, config: dict[str, Any]) -> dict[str, Any]:
    """Steps, tokens, seconds and floating-point operations of the training so far."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    speed = next(callback for callback in callbacks if isinstance(callback, TrainingSpeed))
    cost = {
        "steps": trainer.global_step,
        "target_tokens": speed.tokens,
        "training_seconds": speed.seconds,
        "tokens_per_second": speed.tokens / max(speed.seconds, 1e-9),
    }
    try:
        model = build_model(config, problem, build=described)
        return {**cost, "flops": problem.flops(model, speed.tokens)}
    except ValueError as error:  # what was trained is worth no less
        log.warning("the result has no FLOPs: %s", error)
        return cost


def evaluate_run(trainer: Trainer, problem: Problem, folder: RunFolder, metrics: Mapping[str, Metric]) -> None:
    """Evaluate the last, the best and the averaged checkpoint on the dev and test sets; the run is then done."""
    latest = folder.latest
    assert latest is not None
    files = {"last": latest, "best": folder.checkpoints / "best.ckpt", "averaged": folder.checkpoints / "averaged.ckpt"}
    results: dict[str, Any] = {}
    for name, file in files.items():
        if name != "best" or file.exists():  # there is none when nothing was validated
            results[name] = evaluate_splits(checkpoint.read(file), problem, folder, name=name, metrics=metrics)
            for logger in trainer.loggers:
                logger.log_metrics(
                    {
                        f"{name}/{split}/{key}": value["value"]
                        for split, values in results[name].items()
                        if split != "step"
                        for key, value in values.items()
                        if key != "sentences"
                    },
                    step=trainer.global_step,
                )
    objective = folder.config["objective"]
    if objective not in results["averaged"]["dev"]:
        raise ValueError(
            f"the objective, {objective}, could not be measured on dev, as the log says; the same command evaluates "
            "again."
        )
    folder.write(scores=results, status="done")
