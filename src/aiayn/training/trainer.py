"""The Lightning Trainer of a config: what Lightning is asked to do, and what is done elsewhere."""

import logging
import os
import warnings
from itertools import chain
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from aiayn.checkpoints.checkpoint_io import AtomicCheckpointIO
from aiayn.data.replica import Replica
from aiayn.model.layer import Stack

# What Lightning is told by keys of ours.
KEYS = {
    "max_steps": "training.max_steps",
    "max_epochs": "training.max_epochs",
    "gradient_clip_val": "training.gradient_clip_norm",
    "gradient_clip_algorithm": "training.gradient_clip_norm",
    "log_every_n_steps": "training.log_steps",
    "val_check_interval": "training.validate_steps",
    "accumulate_grad_batches": "data.tokens_per_device",
}


def build_trainer(config: dict[str, Any]) -> Trainer:
    """The Lightning Trainer of a config, without loggers.

    Raises:
        ValueError: if there is no such device, or the settings contradict each other.
    """
    settings, training = dict(config["trainer"]), config["training"]
    check_backend(settings.pop("compile", False))
    for name in settings.keys() & KEYS:
        raise ValueError(f"trainer.{name}={settings[name]} has a key of its own here: set {KEYS[name]}.")
    gpu = settings["accelerator"] in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    devices, cores = settings["devices"], os.cpu_count() or 1
    if settings["accelerator"] in ("auto", "cpu") and not gpu and isinstance(devices, int) and devices > max(cores, 8):
        raise ValueError(f"trainer.devices={devices} is more than this machine's {cores} cores; give fewer processes.")
    if settings["precision"] == "auto":
        bfloat16 = gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        settings["precision"] = "bf16-mixed" if bfloat16 else "32-true"
    # Where attention has become certain, probabilities and gradients are below 1e-38, which CPUs multiply slowly: after
    # 9,000 steps on Multi30k a step took 1.1 to 1.4 times as long. Threads inherit this, so it is set before the first.
    torch.set_flush_denormal(True)
    # In bfloat16 on CPUs oneDNN and torch keep the kernels of the last 1,024 products. A step has other shapes than
    # the last: so memory grew by gigabytes, for kernels that are not asked for again. Both read this when first used.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "128")
    try:
        trainer = Trainer(
            **settings,
            max_epochs=training["max_epochs"] or -1,
            max_steps=training["max_steps"],
            gradient_clip_val=training["gradient_clip_norm"],
            logger=False,
            callbacks=list(instantiate(config["callbacks"], _convert_="all").values()),
            plugins=[AtomicCheckpointIO()],
            val_check_interval=training["validate_steps"],
            log_every_n_steps=training["log_steps"],
            num_sanity_val_steps=0,
            check_val_every_n_epoch=None,  # validation is counted in steps, across epochs
            use_distributed_sampler=False,  # each replica's share is planned by TokenBatchSampler
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=config["run_dir"],
        )
    except (MisconfigurationException, TypeError, ValueError) as error:
        fits = settings["accelerator"] in ("auto", "cpu") or torch.cuda.is_available()
        hint = "" if fits else " (this machine has no GPU: trainer=cpu, or ddp_cpu, needs none)"
        raise ValueError(f"trainer: {' '.join(str(error).split())}{hint}") from error
    if (norm := training["gradient_clip_norm"]) and trainer.precision == "16-mixed":  # a fused Adam unscales gradients
        raise ValueError(
            f"training.gradient_clip_norm={norm} cannot be kept with trainer.precision=16-mixed, whose gradients are "
            f"scaled until the optimizer has them; choose bf16-mixed or 32-true."
        )
    return trainer


def check_backend(how: bool | str | None) -> None:
    """Refuse what `trainer.compile` cannot be.

    Raises:
        ValueError: if it is neither a truth value nor a backend of torch.compile.
    """
    if how and how is not True and how not in (backends := torch.compiler.list_backends(exclude_tags=())):
        raise ValueError(f"trainer.compile must be true, false or one of {', '.join(backends)}, got {how}.")


def compile_layers(model: nn.Module, how: bool | str | None) -> None:
    """Compile the layers of a model as `trainer.compile` says, in place: names in checkpoints stay.

    Layers and not the model: those of a stack share a graph, for all lengths. The loss is made of chunks, whose number
    would be compiled anew for each batch.

    Raises:
        ValueError: if the model has no `Stack`.
    """
    if not how:
        return
    stacks = [part for part in model.modules() if isinstance(part, Stack)]
    if not stacks:
        raise ValueError(
            f"trainer.compile={how}: layers are compiled, and {type(model).__name__} has no Stack of them."
        )
    for layer in chain.from_iterable(stack.layers for stack in stacks):
        layer.compile(dynamic=True, backend="inductor" if how is True else how)


def replica_of(trainer: Trainer) -> Replica:
    """Which share of every batch this process computes: each process has a copy of the model."""
    return Replica(trainer.world_size, trainer.global_rank)


def quiet_lightning() -> None:
    """Leave Lightning's warnings, drop its tips, and the second copies: of Hydra's handlers and of other ranks."""
    if rank_zero_only.rank:  # type: ignore[attr-defined]
        logging.getLogger().setLevel(logging.WARNING)
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.WARNING)
    dropped = ("does not have many workers", "exists and is not empty", "isinstance.treespec", "lr_scheduler.step")
    for tip in (*dropped, "smaller than the logging interval", "`srun` command", "sync_dist"):
        warnings.filterwarnings("ignore", message=f".*{tip}")
