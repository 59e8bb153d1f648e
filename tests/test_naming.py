"""What rows are called: what differs between them, in few characters, and nothing else."""

from typing import Any

import pytest
from conftest import ROOT, SMALL, composed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from aiayn.naming import in_what_differs, names
from aiayn.runs.run import names_of, read_rows


def config(*overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(composed(*overrides))  # type: ignore[return-value]


def called(*configs: dict[str, Any]) -> list[str]:
    return names(configs, [f"[{number}]" for number in range(len(configs))])


@pytest.mark.slow
def test_rows_of_a_sweep_are_called_by_what_is_swept() -> None:
    rows = [config(*SMALL, f"model.heads={heads}", f"seed={seed}") for heads in (1, 4, 8) for seed in (1, 2)]
    assert called(*rows) == [f"heads={heads}, seed {seed}" for heads in (1, 4, 8) for seed in (1, 2)]  # and no d_k
    assert called(*rows[::2]) == ["heads=1", "heads=4", "heads=8"]
    assert called(*rows[:2]) == ["seed 1", "seed 2"]
    assert called(rows[0]) == ["tiny_numbers_ende"]


def test_experiments_keep_their_names_and_get_what_differs_within_one() -> None:
    rows = [config(f"experiment={name}", f"seed={seed}") for name in ("table3_base", "table3_a_h1") for seed in (1, 2)]
    assert called(*rows[::2]) == ["table3_base", "table3_a_h1"]
    assert called(*rows) == [f"{name}, seed {seed}" for name in ("table3_base", "table3_a_h1") for seed in (1, 2)]


def test_a_row_that_is_refused_is_called_as_it_would_be_otherwise_and_so_are_its_neighbours() -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        grids = [
            [compose("config", overrides=[f"model.heads={heads}", f"run_dir=/{heads}"]) for heads in of]
            for of in ([1, 7], [7, 1, 2], [7, 3])
        ]
    assert names_of(read_rows(grids[0])) == ["heads=1", "heads=7"]
    assert names_of(read_rows(grids[1])) == ["heads=7", "heads=1", "heads=2"]
    assert names_of(read_rows(grids[2])) == ["heads=7", "heads=3"]


def made(**keys: Any) -> dict[str, Any]:
    """A config by hand; `a__b` is a.b."""
    found: dict[str, Any] = {"name": "x", "seed": 1}
    for key, value in keys.items():
        *above, last = key.split("__")
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return found


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("model__position___target_", ["aiayn.a.Learned", "mine.Rotary"], ["position=Learned", "position=Rotary"]),
        ("data__name", ["text", "multi30k"], ["data=text", "data=multi30k"]),
        ("training__betas", [[0.9, 0.98], [0.9, 0.999]], ["betas=[0.9,0.98]", "betas=[0.9,0.999]"]),
        ("training__eps", [1e-9, 0.3 - 0.1], ["eps=1e-09", "eps=0.2"]),
        ("trainer__gradient_clip_val", [None, 1.0], ["gradient_clip_val=null", "gradient_clip_val=1"]),
        ("model__tied", [False, True], ["tied=false", "tied=true"]),
        ("checkpoint", ["/runs/a/c/best.ckpt", "/runs/b,1/c/best.ckpt"], ["checkpoint=a", "checkpoint=b,1"]),
        ("checkpoint", ["/runs/a/best.ckpt", "/runs/a/last.ckpt"], ["checkpoint=best.ckpt", "checkpoint=last.ckpt"]),
        ("checkpoint", ["/runs/a", "/runs"], ["checkpoint=a", "checkpoint=runs"]),
        ("my__text", ["a" * 99 + "b", "c" * 99], [f"text={'a' * 12}...{'a' * 7}b", f"text={'c' * 12}...{'c' * 8}"]),
        ("my__text", [f"{'a' * 50}{x}{'a' * 50}" for x in "bc"], [f"text={'a' * 50}{x}{'a' * 50}" for x in "bc"]),
    ],
)
def test_keys_and_values_are_short_and_still_tell(key: str, values: list[Any], expected: list[str]) -> None:
    assert called(*(made(**{key: value}) for value in values)) == expected


def test_a_key_is_as_long_as_it_must_be_to_be_one_key() -> None:
    rows = [made(inference__seed=one, data__max_length=2, model__position__max_length=one) for one in (3, 5)]
    rows += [made(inference__seed=3, data__max_length=2, model__position__max_length=5)]
    assert called(*rows) == [
        "inference.seed=3, position.max_length=3",
        "inference.seed=5, position.max_length=5",
        "inference.seed=3, position.max_length=5",
    ]


def test_a_row_that_its_config_does_not_tell_apart_is_called_by_its_folder() -> None:
    rows = [made(model__heads=1), {}, made(model__heads=2), made(model__heads=2)]
    folders = [f"a=1,model.heads={heads},z=3" for heads in (1, 7, 2, "2b")]
    assert names(rows, folders) == ["heads=1", "model.heads=7", "model.heads=2", "model.heads=2b"]
    assert in_what_differs(["a=1", "a=1"]) == ["a=1", "a=1"]
    assert names([], []) == []
