"""task=evaluate: what a checkpoint is worth on a split; keeps outputs and scores."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from aiayn.arguments import check_groups
from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import (
    checkpoint_files,
    chosen_objective,
    described,
    evaluated_data,
    evaluated_inference,
    evaluated_metrics,
    evaluated_problem,
    metric_options,
)
from aiayn.evaluation.metric import Metric, digits
from aiayn.files import write_text
from aiayn.identity import made_of
from aiayn.inference import ensemble
from aiayn.problems.problem import Problem
from aiayn.runs.run import checkpoint_paths
from aiayn.runs.run_folder import RunFolder
from aiayn.terminal import Terminal, visible
from aiayn.trust import targets

log = logging.getLogger(__name__)


def evaluate_splits(
    loaded: checkpoint.Checkpoint, problem: Problem, folder: RunFolder, *, name: str, metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run on the dev and test sets, and keep its outputs as `name.split.txt`."""
    config = folder.config
    own = list(targets(config["model"]))  # what the run's own config names is its author's code
    model = loaded.model(config["trainer"]["accelerator"], trust=own)
    results: dict[str, Any] = {"step": loaded.step}
    for split in problem.held_out():
        result = problem.evaluate(model, loaded.vocabularies, split, metrics=metrics, name=f"{name}/{split}")
        results[split] = result.as_dict()
        result.write(folder.path / "translations" / f"{name}.{split}")
    return results


def show(folder: RunFolder, problem: Problem, *, samples: int = 4) -> None:
    """Print what a finished run has come to: scores with signatures, a few outputs, speed, and its folder."""
    result, console = folder.result, Terminal()
    sets = {
        f"{name} {split}": scored
        for name, splits in result["scores"].items()
        for split, scored in splits.items()
        if split in ("dev", "test") or (split != "step" and name == "averaged")  # else the table is too wide
    }
    known = {key: score for scored in sets.values() for key, score in scored.items() if key != "sentences"}
    table = Table("", *sets)
    for key, score in known.items():
        values = [scored[key]["value"] if key in scored else None for scored in sets.values()]
        places = digits(value for value in values if value is not None)
        table.add_row(score["name"], *("" if value is None else f"{value:.{places}f}" for value in values))
    console.print(table)
    for score in known.values():
        console.print(f"{score['name']}: {score['signature']}", soft_wrap=True, highlight=False)
    split = "test" if "test" in problem.splits() else "dev"
    outputs = folder.path / "translations" / f"averaged.{split}.txt"
    if outputs.exists():  # not where nothing is decoded
        problem.show(console, split, outputs.read_text(encoding="utf-8").split("\n")[:samples])
    console.print(
        f"\n{result['parameters']:,} parameters, {result['steps']:,} steps, {result['target_tokens']:,} target tokens "
        f"in {result['training_seconds']:.0f} s: {result['tokens_per_second']:,.0f} tokens/s"
        f"{', {:.2e} FLOPs'.format(result['flops']) if 'flops' in result else ''}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)


def evaluate(cfg: DictConfig) -> None:
    """Evaluate `checkpoint` on `data.split`, print its scores, and write evaluation.json and the outputs."""
    check_groups(cfg, "metrics")
    files = checkpoint_files(cfg.checkpoint)
    name = files[0].stem if len(files) == 1 else "ensemble"
    loaded, model = ensemble.load(files, accelerator=cfg.trainer.accelerator, trust=cfg.trust)
    data = evaluated_data(cfg, loaded.config, files[0])
    inference = evaluated_inference(cfg, loaded.config)
    result = evaluated_problem(cfg, loaded.config, data, inference).evaluate(
        model,
        loaded.vocabularies,
        data.split,
        metrics=evaluated_metrics(cfg, loaded.config),
        name=f"{data.name} {data.split}",
    )
    folder = Path(cfg.run_dir)
    result.write(folder / "translations" / f"{name}.{data.split}")
    of_this = {
        "data": OmegaConf.to_container(data, resolve=True),
        "inference": inference,
        "metrics": OmegaConf.to_container(OmegaConf.create(metric_options(cfg, loaded.config)), resolve=True),
        "objective": chosen_objective(cfg, loaded.config),
    }
    config = {**loaded.config, **of_this, "checkpoint": checkpoint_paths(cfg.checkpoint), "name": cfg.name}
    content = {
        "status": "done",
        "config": config,
        "made_of": made_of(config, own=True),
        "composed": OmegaConf.to_container(cfg, resolve=True),  # tells a sweep that this very job is done
        "scores": {name: {"step": loaded.step, data.split: result.as_dict()}},
    }
    write_text(folder / "evaluation.json", json.dumps(content, indent=2) + "\n")
    searched = described(inference)
    log.info("checkpoint %s, step %d, %s", checkpoint_paths(cfg.checkpoint), loaded.step, searched)
    for score in result.scores.values():
        print(visible(f"{data.name} {data.split} {score}"))
    log.info("%d sentences in %s", len(result.references), folder)
