import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CommandLine, composed
from omegaconf import DictConfig, OmegaConf
from small_model import MODEL, content
from torch import Tensor, nn
from torch.nn.functional import silu

from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.building import build
from aiayn.commands.plan import devices, form, notes, plan_row, read_assumptions
from aiayn.cost.estimate import GIB, Assumptions, micro_batch_tokens
from aiayn.data.step_size import accumulation_steps
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.model.view import View

A100 = Assumptions("A100", 1, 0.35, 30, bfloat16=312, float32=19.5, memory=80)
P100 = Assumptions("P100", 1, 0.35, 30, bfloat16=None, float32=9.5, memory=16)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    config: Any = OmegaConf.to_container(composed("task=plan", "plan.devices=1", "experiment=table3_base"))
    return config


def changed(config: dict[str, Any], **values: object) -> DictConfig:
    """The config with other values; `model__heads` is model.heads."""
    cfg: DictConfig = OmegaConf.create(config)
    for key, value in values.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, force_add=True)
    return cfg


@pytest.mark.slow
def test_a_sweep_is_planned_and_an_illegal_row_named(aiayn: CommandLine, outputs: Path) -> None:
    sweep = ["--multirun", "task=plan", "model=base", "model.heads=1,3,4", "name=planned", "plan.accelerator=H100"]
    done = aiayn(*sweep, small=False, code=1)
    folder = outputs / "sweeps" / "planned"
    plan = json.loads((folder / "plan.json").read_text())
    assert [row["name"] for row in plan["rows"]] == [
        f"model.heads={heads},model=base,name=planned" for heads in (1, 3, 4)
    ]
    good, bad, other = plan["rows"]
    assert "model.heads must divide model.d_model, got heads=3, d_model=512" in bad["refused"]
    assert bad["hours"] is None
    assert good["refused"] is other["refused"] is None
    assert good["parameters"] == other["parameters"] == 44_650_496
    assert good["flops"] == good["flops_per_step"] * 100_000
    assert (plan["totals"]["rows"], plan["totals"]["refused"]) == (3, 1)
    assert plan["totals"]["hours"] == pytest.approx(good["hours"] + other["hours"])
    assert plan["assumptions"]["accelerator"] == "H100"
    assert all(text in done.stdout for text in ("44.7", "must divide", "989 TFLOP/s", "plan.json"))
    assert "error" not in done.stderr
    assert {path.name for path in folder.iterdir()} == {"plan.json", "multirun.yaml"}  # nothing was launched


@pytest.mark.slow
def test_a_single_run_is_planned(aiayn: CommandLine, outputs: Path) -> None:
    before = set(outputs.rglob("*"))
    done = aiayn("task=plan", f"plan.output={outputs / 'plans' / 'mine.json'}")
    assert "tiny_numbers_ende" in done.stdout
    assert set(outputs.rglob("*")) - before == {outputs / "plans", outputs / "plans" / "mine.json"}
    assert json.loads((outputs / "plans" / "mine.json").read_text())["totals"]["rows"] == 1


def test_the_papers_flops_have_the_names_that_table_csv_has(base: dict[str, Any]) -> None:
    row = plan_row(changed(base, paper__flops=3.3e18, paper__counted_flops=9.5e17), "row", A100)
    assert (row.paper_flops, row.paper_seconds_x_devices_x_rate) == (9.5e17, 3.3e18)
    assert "seconds x devices" in " ".join(notes([row], [changed(base)], A100))


def test_the_figures_of_base_are_near_the_papers(base: dict[str, Any]) -> None:
    # Section 5.2: 100,000 steps took 12 hours on eight P100, whose sustained 9.5 TFLOP/s make the 3.3e18 of Table 2.
    eight = Assumptions("P100", 8, 0.29, 30, bfloat16=None, float32=9.5, memory=16)
    row = plan_row(changed(base), "base", eight)
    assert row.refused is None
    assert row.hours == pytest.approx(12, rel=0.02)
    assert row.flops == pytest.approx(0.29 * 3.3e18, rel=0.02)  # matrix products alone
    assert (row.tokens, row.precision) == (2_500_000_000, "float32")
    assert 1 < row.memory_bytes / GIB < 4
    text = " ".join(notes([row], [changed(base)], eight))
    assert "40,960" in text
    assert "35,800" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__heads": 0}, ["model.heads must be at least 1", "0"]),
        ({"data__vocab_size": 0}, ["data.vocab_size", "at least 1"]),
        ({"model__d_model": 511, "model__position__d_model": 511}, ["d_model must be even", "511"]),
        ({"model__dropout": 1.0}, ["model.dropout", "below 1", "1.0"]),
        ({"training__warmup_steps": 0}, ["training.warmup_steps", "at least 1"]),
        ({"data__tokens_per_batch": 250}, ["data.tokens_per_batch=250", "251", "data.cleaning.max_length"]),
        ({"data__tokens_per_device": 251}, ["data.tokens_per_device", "251", "data.cleaning.max_length"]),
        ({"data__tokens_per_device": None, "data__tokens_per_batch": 200_000}, ["data.tokens_per_device=", "16 GiB"]),
        ({"data__vocab_size": 4_000_000}, ["GiB without any token", "choose another plan.accelerator"]),
        ({"trainer__precision": "bf16-mixed"}, ["bf16-mixed", "P100 has no bfloat16"]),
        ({"trainer__precision": "16-mixed"}, ["16-mixed", "auto, bf16-mixed and 32-true"]),
        (
            {
                "model__position": {
                    "_target_": "aiayn.model.position.learned.LearnedPosition",
                    "d_model": 512,
                    "max_length": 250,
                }
            },
            ["model.position.max_length=250", "251", "data.cleaning.max_length=250"],
        ),
        ({"data__path": "???"}, ["data.path"]),
    ],
)
def test_a_row_that_cannot_run_names_its_rule(base: dict[str, Any], changes: dict, words: list[str]) -> None:
    refused = plan_row(changed(base, **changes), "row", P100).refused
    assert refused is not None
    assert all(word in refused for word in words), refused
    assert "\n" not in refused


@pytest.mark.parametrize(
    ("hours", "shown"),
    [(1234.5, "1,234"), (9.87, "9.9"), (0.1, "0.1"), (0.0834, "5 min"), (0.0277, "1.7 min"), (2.9e-5, "0.1 s")],
)
def test_less_than_a_tenth_of_an_hour_is_minutes_or_seconds(hours: float, shown: str) -> None:
    assert form("hours", hours) == shown


@pytest.mark.slow
def test_a_row_of_another_optimizer_is_not_refused_for_adams_memory(base: dict[str, Any]) -> None:
    large = {"data__tokens_per_device": None, "data__tokens_per_batch": 200_000}
    for optimizer, refused in (("Adam", True), ("AdamW", True), ("SGD", False), ("Adafactor", False)):
        row = changed(
            base,
            **large,
        )
        row.training.optimizer._target_ = f"torch.optim.{optimizer}"
        plan = plan_row(row, "x", P100)
        assert (plan.refused is not None) == refused
        assert any("as for Adam" in note for note in notes([plan], [row], P100)) == (not refused)


def test_the_remedy_for_memory_helps(base: dict[str, Any]) -> None:
    changes = {"data__tokens_per_device": None, "data__tokens_per_batch": 200_000}
    refused = plan_row(changed(base, **changes), "row", P100).refused or ""
    room = int(refused.split("data.tokens_per_device=")[1].split()[0])
    assert room > 10_000
    mended = plan_row(changed(base, **{**changes, "data__tokens_per_device": room}), "row", P100)
    assert mended.refused is None
    assert mended.memory_bytes < 16 * GIB


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("per_device", [None, 300, 8192, 40_000])
def test_a_micro_batch_is_what_training_makes_of_a_step(devices: int, per_device: int | None) -> None:
    data = {"tokens_per_batch": 25_000, "tokens_per_device": per_device, "cleaning": {"max_length": 250}}
    tokens = micro_batch_tokens(data, devices)
    accumulation = accumulation_steps(25_000, per_device, world_size=devices, longest=251)
    share = 25_000 / (devices * accumulation)
    assert tokens == (share if devices * accumulation == 1 else share + 251)  # the pair that was begun last
    assert tokens <= (per_device or 25_000)


class Gated(nn.Module):
    """A feed-forward network of one's own, with a third matrix."""

    def __init__(self, d_model: int, d_ff: int, activation_dropout: float = 0.0) -> None:
        super().__init__()
        self.gate, self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, *, view: View) -> Tensor:
        return self.outer(silu(self.gate(x)) * self.inner(x))


def test_a_part_of_ones_own_is_counted(base: dict[str, Any]) -> None:
    plain, gated = (
        plan_row(changed(base, model__feed_forward___target_=target), "row", A100)
        for target in ("aiayn.model.feed_forward.relu.FeedForward", f"{__name__}.Gated")
    )
    assert gated.refused is None
    assert gated.parameters - plain.parameters == 12 * 2048 * (512 + 1)
    assert gated.flops - plain.flops == pytest.approx(6 * 12 * 2048 * 512 * 25_000 * 100_000)
    assert gated.memory_bytes > plain.memory_bytes


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"model__encoder_layers": 7}, 4 * 512 * (512 + 1) + 512 * (2048 + 1) + 2048 * (512 + 1) + 4 * 512),
        ({"model__decoder_layers": 5}, -8 * 512 * (512 + 1) - 512 * (2048 + 1) - 2048 * (512 + 1) - 6 * 512),
        ({"model__attention__kv_heads": 2}, -18 * 6 * (64 + 64) * (512 + 1)),
        ({"data__shared_vocabulary": False}, 37_000 * 512),
    ],
)
def test_unequal_depths_shared_keys_and_two_vocabularies_are_counted(
    base: dict[str, Any], change: dict[str, Any], more: int
) -> None:
    plain, other = plan_row(changed(base), "row", A100), plan_row(changed(base, **change), "row", A100)
    assert other.refused is None
    assert other.parameters - plain.parameters == more
    embeds = "data__shared_vocabulary" in change  # which is no product
    assert np.sign(other.flops - plain.flops) == (0 if embeds else np.sign(more))
    assert np.sign(other.memory_bytes - plain.memory_bytes) == np.sign(more)


class Looking(Gated):
    """A network that looks at values while it is built."""

    def __init__(self, d_model: int, d_ff: int, activation_dropout: float = 0.0) -> None:
        super().__init__(d_model, d_ff, activation_dropout)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]


def test_a_part_that_looks_at_values_is_named_and_can_be_opened(base: dict[str, Any], tmp_path: Path) -> None:
    looking = f"{__name__}.Looking"
    refused = plan_row(changed(base, model__feed_forward___target_=looking), "row", A100).refused
    assert refused is not None
    assert "the model cannot be described without values: " in refused
    saved = content(Vocabularies.joint(Tokenizer.train(["one two three"], vocab_size=19)), seed=1, step=1)
    saved["config"] = {"model": {**MODEL, "feed_forward": {**MODEL["feed_forward"], "_target_": looking}}}
    model = build(saved["config"]["model"], vocab_size=19)
    saved["state_dict"] = {f"model.{name}": value for name, value in model.state_dict().items()}
    checkpoint.write(tmp_path / "a.ckpt", saved)
    assert checkpoint.read(tmp_path / "a.ckpt").model(trust=[__name__]).state_dict().keys() == model.state_dict().keys()


def test_a_part_that_is_not_there_is_named(base: dict[str, Any]) -> None:
    refused = plan_row(changed(base, model__norm___target_="mine.Unheard"), "row", A100).refused
    assert refused is not None
    assert "mine.Unheard" in refused


def test_bfloat16_is_taken_where_there_is_one(base: dict[str, Any]) -> None:
    rows = {name: plan_row(changed(base), "row", device) for name, device in (("A100", A100), ("P100", P100))}
    assert (rows["A100"].precision, rows["P100"].precision) == ("bfloat16", "float32")
    single = plan_row(changed(base, trainer__precision="32-true"), "row", A100)
    assert single.hours == pytest.approx(rows["A100"].hours * 312 / 19.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accelerator": "A200"}, ["plan.accelerator=A200", "H100", "+plan.accelerators.A200"]),
        ({"devices": 0}, ["plan.devices", "whole number above 0", "0"]),
        ({"devices": 1.5}, ["plan.devices", "whole number", "1.5"]),
        ({"devices": "many"}, ["plan.devices", "many"]),
        ({"utilization": 35}, ["plan.utilization", "at most 1", "35"]),
        ({"sentence_length": -1}, ["plan.sentence_length", "above 0"]),
        ({"sentence_length": 2.5}, ["plan.sentence_length", "whole number", "2.5"]),
        ({"accelerators": {"A100": {"float32": 1}}}, ["plan.accelerators.A100.memory", "None"]),
    ],
)
def test_assumptions_out_of_range_are_refused(base: dict[str, Any], change: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the words are looked for below
        read_assumptions({**base["plan"], **change})
    assert all(word in str(error.value) for word in words), error.value


def test_an_accelerator_of_ones_own_can_be_added(base: dict[str, Any]) -> None:
    mine = {"bfloat16": None, "float32": 2.5, "memory": 7}
    assumed = read_assumptions({**base["plan"], "accelerator": "Mine", "accelerators": {"Mine": mine}})
    assert (assumed.float32, assumed.bfloat16, assumed.memory) == (2.5, None, 7)


@pytest.mark.parametrize(("asked", "expected"), [("auto", 1), (-1, 1), (8, 32), ("8", 1)])
def test_the_devices_are_those_of_the_trainer(asked: object, expected: int) -> None:
    assert devices(OmegaConf.create({"devices": asked, "num_nodes": 4})) == expected
