"""task=average: the mean of checkpoints' weights as a checkpoint of its own (section 6.1)."""

import logging
from pathlib import Path

from omegaconf import DictConfig

from aiayn.inference import checkpoint

log = logging.getLogger(__name__)


def average(cfg: DictConfig) -> None:
    """Average `checkpoints` into `output`."""
    paths = [Path(path) for path in cfg.checkpoints]
    output = Path(cfg.output)
    checkpoint.write(output, checkpoint.average(paths))
    log.info("wrote the average of %d checkpoints to %s", len(paths), output)
