"""The mean of several checkpoints' weights (section 6.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aiayn.checkpoints import checkpoint
from aiayn.data.tokenizer import NAMES
from aiayn.identity import ENDS, differing


def trained_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that training goes on from; with callbacks=ema, `state_dict` is their moving average instead."""
    return content.get("current_model_state", content["state_dict"])


class Average:
    """The mean of the weights of one run's checkpoints (section 6.1), which are added one by one.

    Their sum is kept in float64; besides, no more than the weights of one checkpoint are in memory at a time.
    """

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.steps: list[int] = []
        self.likeness: tuple[Any, ...] = ()  # what they must agree on
        self.kept: dict[str, Any] = {}  # what is not averaged
        self.sums: dict[str, Tensor] = {}
        self.types: dict[str, torch.dtype] = {}

    def add(self, path: Path) -> None:
        """Read a checkpoint, and add its weights as they were trained.

        Raises:
            ValueError: if it cannot be read, has weights that are no numbers, or is of another run than the others.
        """
        content = checkpoint.read_raw(path)
        weights = trained_weights(content)
        if wrong := [name for name, value in weights.items() if not value.isfinite().all()]:
            raise ValueError(f"checkpoint {path} has weights that are NaN or infinite, {wrong[0]}; leave it out.")
        likeness = content["tokenizer_hash"], {name: value.shape for name, value in weights.items()}
        if not self.paths:
            self.likeness = likeness
            self.kept = {key: content[key] for key in ("config", "tokenizer_hash", *NAMES) if key in content}
            self.sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
            self.types = {name: value.dtype for name, value in weights.items()}
        else:
            keys = differing(self.kept["config"], content["config"], but=ENDS)
            if keys or likeness != self.likeness:
                what = keys[0] if keys else "tokenizer or model"
                raise ValueError(f"checkpoints {self.paths[0]} and {path} differ in {what}; give those of one run.")
        for name, value in weights.items():
            self.sums[name] += value
        self.paths.append(path)
        self.steps.append(content["global_step"])

    def content(self) -> dict[str, Any]:
        """The mean as the content of a checkpoint, without training state, as `checkpoint.write` takes it."""
        weights = {name: (total / len(self.paths)).to(self.types[name]) for name, total in self.sums.items()}
        averaged = {"averaged": [str(path) for path in self.paths], "averaged_steps": sorted(self.steps)}
        return {**self.kept, "state_dict": weights, "global_step": max(self.steps), **averaged}


def average(paths: Sequence[Path]) -> dict[str, Any]:
    """The content of a checkpoint with the mean of others' weights, as `Average` has it.

    Raises:
        ValueError: if there are none, one is listed twice, or they differ in tokenizer or model.
    """
    if not paths:
        raise ValueError("checkpoints=[] names no checkpoint to average.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"checkpoints lists a file twice: {', '.join(map(str, paths))}.")
    mean = Average()
    for path in paths:
        mean.add(path)
    return mean.content()
