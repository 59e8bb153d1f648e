"""Several models that predict together: the mean of their probabilities at every step of the search."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from aiayn.checkpoints.checkpoint import Checkpoint, read
from aiayn.model.decoder import DecoderState
from aiayn.model.transformer import Transformer


class Ensemble(nn.Module):
    """Takes the place of a `Transformer` in search and scoring.

    Args:
        models: With one vocabulary; their sizes may differ.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models: Sequence[Transformer] = nn.ModuleList(models)  # type: ignore[assignment]
        self.pad_id = models[0].pad_id

    @property
    def longest(self) -> int | None:
        """The greatest length that every member can encode; None when there is no limit."""
        return min((model.longest for model in self.models if model.longest is not None), default=None)

    def start(self, source: Tensor) -> "EnsembleState":
        """As `Transformer.start`."""
        return EnsembleState([model.start(source) for model in self.models])

    def step(self, tokens: Tensor, state: "EnsembleState") -> Tensor:
        """As `Transformer.step`; log-probabilities take the place of logits."""
        return self._mean([model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)])

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """As `Transformer.features`, those of the members side by side: `(batch, target, sum of d_model)`."""
        return torch.cat([model.features(source, target) for model in self.models], dim=-1)

    def project(self, features: Tensor) -> Tensor:
        """Log-probabilities `(..., vocab)` of `features`."""
        widths = [model.embedding.embedding_dim for model in self.models]
        parts = zip(self.models, features.split(widths, dim=-1), strict=True)
        return self._mean([model.project(part) for model, part in parts])

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The log of the mean of the probabilities."""
        found = torch.stack([part.float().log_softmax(-1) for part in logits])
        return found.logsumexp(0) - math.log(len(logits))


class EnsembleState:
    """Where step-by-step decoding stands in every member."""

    def __init__(self, states: Sequence[DecoderState]) -> None:
        self.states = states

    def reorder(self, beam_index: Tensor) -> None:
        """As `DecoderState.reorder`."""
        self._each(DecoderState.reorder, beam_index)

    def select(self, rows: Sequence[int]) -> None:
        """As `DecoderState.select`."""
        self._each(DecoderState.select, rows)

    def _each(self, change: Callable[[DecoderState, Tensor], None], index: Tensor) -> None:
        for state in self.states:
            change(state, index)


def load(paths: Sequence[Path], *, accelerator: str = "cpu") -> tuple[Checkpoint, Transformer | Ensemble]:
    """The first checkpoint, and the model that all of them make.

    Raises:
        ValueError: if there is none, one cannot be read, or their vocabularies differ.
    """
    if not paths:
        raise ValueError("checkpoint=[] names no checkpoint; give one, or several for an ensemble.")
    checkpoints = [read(path) for path in paths]
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        if checkpoint.tokenizer.hash != checkpoints[0].tokenizer.hash:
            raise ValueError(
                f"checkpoints {paths[0]} and {path} have different vocabularies ({checkpoints[0].tokenizer.hash[:8]}, "
                f"{checkpoint.tokenizer.hash[:8]}); an ensemble needs models of one prepared corpus."
            )
    models = [checkpoint.model(accelerator) for checkpoint in checkpoints]
    return checkpoints[0], models[0] if len(models) == 1 else Ensemble(models)
