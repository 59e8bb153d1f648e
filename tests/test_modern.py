"""The rows of the family: each a difference from one base, each with a model that can be counted."""

from functools import cache
from typing import Any

import pytest
from conftest import ROOT, composed
from omegaconf import OmegaConf

from aiayn.checkpoints.building import described
from aiayn.cost.counting import pair_flops, parameters
from aiayn.identity import settings
from aiayn.schema import check

ROWS = sorted(path.stem for path in (ROOT / "experiments").glob("modern_*.yaml"))
PUBLISHED = {"paper", "system", "metric", "with", "without", "seeds"}


@cache  # composing takes half of the time
def config(row: str, *overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(composed(f"experiment={row}", *overrides))  # type: ignore[return-value]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_differs_from_its_base_in_its_model_alone_and_can_be_counted(row: str) -> None:
    base = "modern_all" if row.startswith("modern_minus_") else "modern_base"
    mine, theirs = (config(name, "scale=tiny") for name in (row, base))
    check(mine)
    assert mine["published"] == {} or mine["published"].keys() == PUBLISHED
    one, other = settings(mine), settings(theirs)
    differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} - {"name"}
    assert all(key.startswith("model.") for key in differing)
    assert bool(differing) == (row != base)
    model = described(mine["model"], vocab_size=300)
    assert pair_flops(model, source_length=7, target_length=5, pairs=1) > parameters(model)


@pytest.mark.parametrize(("row", "layers"), [("modern_depth18", (18, 18)), ("modern_deep_encoder", (12, 1))])
def test_a_deep_row_has_the_layers_of_its_name_at_full_scale(row: str, layers: tuple[int, int]) -> None:
    model = config(row)["model"]
    assert (model["encoder_layers"], model["decoder_layers"]) == layers


def test_a_gated_row_has_the_parameters_of_base() -> None:
    base, *gated = (
        parameters(described(config(row)["model"], vocab_size=37000))
        for row in ("modern_base", "modern_geglu", "modern_swiglu")
    )
    assert gated == pytest.approx([base] * 2, rel=0.001)
