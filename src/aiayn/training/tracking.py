"""Loggers of a run: CSV always, TensorBoard and Weights & Biases on request."""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)


@contextmanager
def loggers(settings: Mapping[str, Any], folder: Path, config: dict[str, Any]) -> Iterator[list[Logger]]:
    """Open the loggers of `logger=`, with the run's config, and close them even when the run fails.

    W&B goes offline when there is no login, and a run that is resumed in its folder stays one run there. Without the
    closing, all rows of a sweep in one process would become one W&B run, and a failed run would count as finished.
    """
    settings = {name: dict(values) for name, values in settings.items()}
    if "wandb" in settings:
        settings["wandb"] = _wandb_settings(settings["wandb"], folder)
    opened: list[Logger] = []
    failed = True
    try:
        for values in settings.values():
            opened.append(instantiate(values))
            opened[-1].log_hyperparams(config)
        yield opened
        failed = False
    finally:
        for logger in opened:
            logger.finalize("failed" if failed else "success")
        if "wandb" in settings:
            import wandb

            wandb.finish(exit_code=int(failed))


def _wandb_settings(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Add the run's id, kept in its folder, its name and group, and whether W&B has to be offline."""
    import wandb

    file = folder / "wandb_id.txt"
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    settings["id"] = settings["id"] or file.read_text()
    settings["name"] = settings["name"] or folder.name
    settings["group"] = settings["group"] or folder.parent.name
    if wandb.setup().settings.mode != "offline" and not wandb.login(prompt=False, verify=False):
        log.warning("W&B has no login: the run is kept offline in %s; `wandb login`, then `wandb sync` it.", folder)
        settings |= {"offline": True, "mode": "offline"}  # the logger's own way comes too late once W&B is set up
    return settings
