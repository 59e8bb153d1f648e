"""A run with `callbacks=ema`: the average is what the formula says, wherever it is seen."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import CommandLine, composed

from aiayn.callbacks.ema import ExponentialMovingAverage
from aiayn.checkpoints import checkpoint

DECAY = 0.7
FLAGS = ["training.max_steps=11", "training.checkpoint_steps=1", "training.validate_steps=11"]
FLAGS += ["training.keep_checkpoints=11"]
EMA = ["callbacks=ema", f"callbacks.ema.decay={DECAY}"]


@pytest.mark.parametrize("decay", [-0.1, 1, 1.5])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=rf"callbacks\.ema\.decay must be at least 0 and below 1, got {decay}\."):
        ExponentialMovingAverage(decay=decay)


def test_dev_is_translated_before_the_trained_weights_are_back() -> None:
    # Both act when the validation ends, in this order.
    names = list(composed("callbacks=ema").callbacks)
    assert names.index("quality") < names.index("ema")


@pytest.fixture(scope="module")
def run(aiayn: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ema") / "run"
    aiayn(f"run_dir={folder}", *FLAGS, *EMA)
    return folder


def contents(folder: Path) -> list[dict]:
    return [checkpoint.read_raw(path) for path in sorted((folder / "checkpoints").glob("step_*.ckpt"))]


@pytest.mark.slow
def test_the_state_dict_is_the_average_of_all_steps(run: Path) -> None:
    saved = contents(run)
    assert len(saved) == 11
    mean = saved[0]["current_model_state"]
    for content in saved:
        trained = content["current_model_state"]
        if content is not saved[0]:
            mean = {name: DECAY * mean[name] + (1 - DECAY) * value for name, value in trained.items()}
        for name, value in content["state_dict"].items():
            torch.testing.assert_close(value, mean[name], rtol=1e-6, atol=1e-8)
    assert any(not torch.equal(mean[name], value) for name, value in saved[-1]["current_model_state"].items())


@pytest.mark.slow
def test_dev_and_the_best_checkpoint_are_of_the_average(run: Path) -> None:
    best = checkpoint.read_raw(run / "checkpoints" / "best.ckpt")
    last = contents(run)[-1]
    assert best["global_step"] == last["global_step"] == 11
    assert all(torch.equal(value, last["state_dict"][name]) for name, value in best["state_dict"].items())
    scores = json.loads((run / "result.json").read_text())["scores"]
    with (run / "metrics" / "version_0" / "metrics.csv").open() as file:
        (validated,) = [line for line in csv.DictReader(file) if line["dev/perplexity"]]
    for name in ("last", "best"):
        assert float(validated["dev/perplexity"]) == pytest.approx(scores[name]["dev"]["perplexity"]["value"], rel=1e-5)
        assert float(validated["dev/bleu"]) == pytest.approx(scores[name]["dev"]["bleu"]["value"], rel=1e-5)
    assert scores["averaged"]["dev"]["perplexity"]["value"] != pytest.approx(
        scores["last"]["dev"]["perplexity"]["value"], rel=1e-3
    )


@pytest.mark.slow
def test_training_and_the_mean_of_the_last_checkpoints_are_as_without_it(
    aiayn: CommandLine, run: Path, tmp_path: Path
) -> None:
    aiayn(f"run_dir={tmp_path}", *FLAGS)
    ours, theirs = (checkpoint.read(folder / "checkpoints" / "averaged.ckpt").weights for folder in (run, tmp_path))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    trained, plain = contents(run)[-1]["current_model_state"], contents(tmp_path)[-1]["state_dict"]
    assert all(torch.equal(trained[name], value) for name, value in plain.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [([], "not None"), (["callbacks=ema", "callbacks.ema.decay=0.5"], "decay=0.7, not 0.5")],
    ids=["none", "another"],
)
def test_a_run_does_not_go_on_with_another_average(
    aiayn: CommandLine, run: Path, tmp_path: Path, settings: list[str], words: str
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    more = ["training.max_steps=13", *FLAGS[1:], *settings]
    refused = aiayn(f"run_dir={tmp_path}/copy", *more, code=1).stderr.splitlines()[-1]
    assert "callbacks.ema" in refused
    assert words in refused
