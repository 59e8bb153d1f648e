"""Weights of before attention had two maps, as those of today; `stored_config` renews the config beside them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

STACKED = ".projection."


def renewed(weights: Mapping[str, Tensor], model: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights with W^Q, W^K and W^V, once stacked in this order, as the maps `query` and `memory`.

    Args:
        weights: By name; without stacked ones they come back as they are.
        model: Config with the sizes of a head.
    """
    found = {name: value for name, value in weights.items() if STACKED not in name}
    for name in weights.keys() - found.keys():
        sizes = [model["heads"] * model[width] for width in ("d_k", "d_k", "d_v")]
        query, *memory = weights[name].split(sizes)
        heads = [part.unflatten(0, (model["heads"], -1)) for part in memory]  # (heads, d_k or d_v, ...)
        found[name.replace(STACKED, ".query.")] = query
        found[name.replace(STACKED, ".memory.")] = torch.cat(heads, dim=1).flatten(0, 1)
    return found
