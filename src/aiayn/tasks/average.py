"""task=average: the mean of checkpoints' weights as a checkpoint of its own (section 6.1)."""

import logging
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from aiayn.inference import checkpoint

log = logging.getLogger(__name__)


def average(cfg: DictConfig) -> None:
    """Average `checkpoints` into `output`.

    Raises:
        ValueError: if `checkpoints` is no list of checkpoints that can be averaged.
    """
    if not OmegaConf.is_list(cfg.checkpoints) or not cfg.output:
        raise ValueError("give files to average and a file to write: 'checkpoints=[a.ckpt,b.ckpt]' output=mean.ckpt")
    paths = [Path(str(path)) for path in cfg.checkpoints]
    output = Path(cfg.output)
    checkpoint.write(output, checkpoint.average(paths))
    log.info("wrote the average of %d checkpoints to %s", len(paths), output)
