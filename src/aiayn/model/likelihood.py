"""How probable a model finds given targets, sentence by sentence."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from aiayn.model.model import Model

PROJECTED = 1024  # target positions whose logits are in memory at once


@torch.no_grad()
def log_likelihoods(model: Model, batch: Any) -> Tensor:
    """Teacher-forced ln P(target | source) of each pair, unsmoothed, on the CPU, float64, `(pairs,)`.

    What comes behind the decoder is computed in float32 whatever the model is trained in: perplexities are published to
    three digits.

    Args:
        model: On whatever device.
        batch: With `target` and `positions`, as `aiayn.data.batching.Batch` has them; on the same device.
    """
    labels = batch.target[:, 1:]
    features = model(batch).features.flatten(0, 1)[batch.positions].float()
    with torch.autocast(features.device.type, enabled=False):
        parts = zip(features.split(PROJECTED), labels.flatten()[batch.positions].split(PROJECTED), strict=True)
        losses = [
            functional.cross_entropy(model.project(part).float(), label, reduction="none") for part, label in parts
        ]
    found = torch.zeros(labels.numel(), dtype=torch.float64)
    found[batch.positions.cpu()] = -torch.cat([features.new_zeros(0), *losses]).double().cpu()
    return found.view(labels.shape).sum(1)
