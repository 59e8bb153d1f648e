"""task=prepare: whatever has to be done to the data before training; once for all runs with the same data settings."""

import logging

from hydra.utils import instantiate
from omegaconf import DictConfig

from aiayn.arguments import check_groups

log = logging.getLogger(__name__)


def prepare(cfg: DictConfig) -> None:
    """Prepare the data and say where they are."""
    check_groups(cfg, "data")
    problem = instantiate(cfg.problem)(cfg)
    problem.prepare()
    log.info("%s is prepared: %s", cfg.data.name, problem.folder)
