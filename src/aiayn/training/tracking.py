"""Loggers of a run: CSV always, TensorBoard and Weights & Biases on request.

A run's folder is one W&B run: the folder's name is the run's name, the folder above (the sweep) its group.
"""

import json
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from aiayn.files import write_text

log = logging.getLogger(__name__)

ID = "wandb_id.txt"  # in a run's folder: which W&B run it is
COSTS = ("steps", "parameters", "target_tokens", "training_seconds", "tokens_per_second", "flops")  # of result.json


class ForwardWandbLogger(WandbLogger):
    """Lightning's logger, whose global step never goes back.

    A killed run resumes from its last checkpoint and repeats the steps behind it, with the same values. W&B has them,
    and its own counter of steps knows nothing of ours; so what is behind the last logged step is not logged again.
    """

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if step is not None:
            file = Path(str(self.save_dir)) / "wandb_step.txt"
            if file.exists() and step < int(file.read_text() or 0):
                return
            write_text(file, str(step))
        super().log_metrics(metrics, step)


@contextmanager
def loggers(settings: Mapping[str, Any], folder: Path, config: dict[str, Any]) -> Iterator[list[Logger]]:
    """Open the loggers of `logger=`, with the run's config, and close them even when the run fails.

    W&B goes offline when there is no login, and a run that is resumed in its folder stays one run there. Without the
    closing, all rows of a sweep in one process would become one W&B run, and a failed run would count as finished.

    Raises:
        ValueError: if W&B cannot be reached.
    """
    settings = {name: dict(values) for name, values in settings.items()}
    has_wandb = "wandb" in settings and rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if has_wandb:
        settings["wandb"] = _wandb_settings(settings["wandb"], folder, config)
    opened: list[Logger] = []
    failed = True
    try:
        for name, values in settings.items():
            opened.append(instantiate(values))
            if name == "wandb" and has_wandb:
                _start_wandb(opened[-1], config)
                write_text(folder / ID, values["id"])
            opened[-1].log_hyperparams(config)
        yield opened
        failed = False
    finally:
        for logger in opened:
            logger.finalize("failed" if failed else "success")
        if has_wandb:
            _finish_wandb(folder, failed=failed)


def _wandb_settings(settings: dict[str, Any], folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Add the run's id, kept in its folder, its name, group and tags, and whether W&B has to be offline."""
    import wandb

    try:
        file, surroundings = folder / ID, wandb.setup().settings
    except RuntimeError as error:  # no home folder: neither HOME is set, nor has this user an entry in passwd
        raise ValueError(f"logger=wandb: {error} Set HOME to a folder that W&B may keep its settings in.") from error
    if file.exists():
        settings["id"] = settings["id"] or file.read_text()
        settings["tags"] = None  # others would replace those that the run has there
    else:  # an agent of a W&B sweep has given the run an id already
        given = surroundings.sweep_id and surroundings.run_id
        settings["id"] = settings["id"] or given or secrets.token_hex(4)
        settings["tags"] = [*settings["tags"], *_tags(config)]
    settings["name"] = settings["name"] or folder.name
    settings["group"] = settings["group"] or folder.parent.name
    mode = settings["mode"] or surroundings.mode
    if mode not in ("offline", "dryrun", "disabled") and not wandb.login(prompt=False, verify=False):
        log.warning("W&B has no login: the run is kept offline in %s; `wandb login`, then `wandb sync` it.", folder)
        settings["mode"] = "offline"
    return settings


def _tags(config: dict[str, Any]) -> list[str]:
    """The sweep, the paper's table and the scale, as far as the run has them."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    table = re.match(r"table\d+", config["name"])
    tags = [choices.get("sweep"), table and table.group(), config["scale"]["name"]]
    return [tag for number, tag in enumerate(tags) if tag and tag not in tags[:number]]


def _start_wandb(logger: Any, config: dict[str, Any]) -> None:
    """Begin the W&B run, with the paper's figures in its summary, so that a chart can put ours beside them."""
    import wandb

    try:
        run = logger.experiment
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"logger=wandb: {reason}; logger.wandb.mode=offline needs no server.") from error
    run.summary.update({f"paper/{name}": value for name, value in config["paper"].items() if value is not None})


def _finish_wandb(folder: Path, *, failed: bool) -> None:
    """End the W&B run as what it is, with the final scores and costs in its summary."""
    import wandb

    if wandb.run is not None and not failed:
        with suppress(OSError):  # nothing was evaluated
            wandb.run.summary.update(final_figures(json.loads((folder / "result.json").read_text())))
    wandb.finish(exit_code=int(failed))


def final_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Scores of a result.json, named `averaged/test/bleu`, and costs, `training_seconds`."""
    figures = {name: result[name] for name in COSTS if name in result}
    for checkpoint, splits in result.get("scores", {}).items():
        for split, scores in splits.items():
            for name, score in scores.items() if isinstance(scores, dict) else ():
                value = score.get("value") if isinstance(score, dict) else score
                if isinstance(value, int | float):
                    figures[f"{checkpoint}/{split}/{name}"] = value
    return figures
