"""task=export: a finished model as a folder for other programs."""

import logging

from omegaconf import DictConfig

from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import checkpoint_file
from aiayn.files import whole_folder
from aiayn.inference import export
from aiayn.paths import path_of

log = logging.getLogger(__name__)


def export_model(cfg: DictConfig) -> None:
    """Write `checkpoint` to the folder `output`, whole or not at all.

    Raises:
        ValueError: if an option has no meaning, the folder exists, or the format has no place for the model.
    """
    if cfg.format not in ("ctranslate2", "safetensors"):
        raise ValueError(f"format must be ctranslate2 or safetensors, got {cfg.format}.")
    if cfg.format == "safetensors" and cfg.quantization is not None:
        raise ValueError(f"quantization={cfg.quantization} is for format=ctranslate2; safetensors keeps the weights.")
    file = checkpoint_file(cfg.checkpoint)
    output = path_of(cfg, "output")
    with whole_folder(output) as folder:
        loaded = checkpoint.read(file)
        if cfg.format == "safetensors":
            export.write_safetensors(loaded, folder)
        else:
            export.write_ctranslate2(loaded, folder, quantization=cfg.quantization, trust=cfg.trust)
    log.info("wrote %s of step %d to %s", cfg.format, loaded.step, output)
