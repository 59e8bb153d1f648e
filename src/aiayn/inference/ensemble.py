"""Several models that predict together: the mean of their probabilities at every step of the search."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aiayn.checkpoints.checkpoint import Checkpoint, read
from aiayn.model.model import Model, Outputs


class Ensemble(Model):
    """Takes the place of a `Model` in search and scoring.

    Args:
        models: With one vocabulary; their sizes may differ.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)
        self.pad_id = models[0].pad_id

    @property
    def longest(self) -> int | None:
        """The greatest length that every member can encode; None when there is no limit."""
        return min((model.longest for model in self.models if model.longest is not None), default=None)

    def start(self, source: Tensor) -> "EnsembleState":
        """As `Model.start`."""
        return EnsembleState([model.start(source) for model in self.models])

    def step(self, tokens: Tensor, state: "EnsembleState") -> Tensor:
        """As `Model.step`; log-probabilities take the place of logits."""
        return self._mean([model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)])

    def forward(self, batch: Any) -> Outputs:
        """The features of the members side by side, `(batch, target, sum of d_model)`."""
        return Outputs(torch.cat([model(batch).features for model in self.models], dim=-1), {})

    def project(self, features: Tensor) -> Tensor:
        """Log-probabilities `(..., vocab)` of `features`."""
        widths = [model.output_weight.size(1) for model in self.models]
        parts = zip(self.models, features.split(widths, dim=-1), strict=True)
        return self._mean([model.project(part) for model, part in parts])

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The log of the mean of the probabilities."""
        found = torch.stack([part.float().log_softmax(-1) for part in logits])
        return found.logsumexp(0) - math.log(len(logits))


class EnsembleState:
    """Where step-by-step decoding stands in every member."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = states

    def reorder(self, beam_index: Tensor) -> None:
        """As `DecoderState.reorder`."""
        for state in self.states:
            state.reorder(beam_index)

    def select(self, rows: Tensor) -> None:
        """As `DecoderState.select`."""
        for state in self.states:
            state.select(rows)


def load(paths: Sequence[Path], *, accelerator: str = "cpu", trust: Collection[str] = ()) -> tuple[Checkpoint, Model]:
    """The first checkpoint, and the model that all of them make.

    Raises:
        ValueError: if there is none, one cannot be read, or their vocabularies differ.
    """
    if not paths:
        raise ValueError("checkpoint=[] names no checkpoint; give one, or several for an ensemble.")
    checkpoints = [read(path) for path in paths]
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        if checkpoint.vocabularies.hash != checkpoints[0].vocabularies.hash:
            raise ValueError(
                f"checkpoints {paths[0]} and {path} have different vocabularies "
                f"({checkpoints[0].vocabularies.hash[:8]}, {checkpoint.vocabularies.hash[:8]}); an ensemble needs "
                "models of one prepared corpus."
            )
    models = [checkpoint.model(accelerator, trust=trust) for checkpoint in checkpoints]
    return checkpoints[0], models[0] if len(models) == 1 else Ensemble(models)
