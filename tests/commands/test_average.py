"""The averaging lab on checkpoints with random weights, and on a run that was trained."""

import csv
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, CommandLine, Told, write_checkpoint
from sacrebleu.metrics import BLEU

from aiayn.checkpoints import averaging, checkpoint
from aiayn.commands import average as lab
from aiayn.evaluation.metric import Score
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.significance import p_value, resampled_sums

pytestmark = pytest.mark.slow

STEPS = (3, 5, 7, 11)
Lab = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with checkpoints of random weights."""
    for step in STEPS:
        file = tmp_path / "checkpoints" / f"step_{step:07d}.ckpt"
        words = ("one", "two", "three", "eins", "zwei")
        write_checkpoint(file, *SMALL, "data.corpus.dev=5", words=words, seed=step, step=step)
    return tmp_path


@pytest.fixture
def command(told: Told) -> Lab:
    """Run the task with overrides, in this process."""
    return lambda *overrides: lab.average(told("task=average", "trainer=cpu", *overrides))


def weights(run: Path, name: str) -> dict[str, torch.Tensor]:
    return checkpoint.read(run / "checkpoints" / name).weights


def mean_of(run: Path, *steps: int) -> dict[str, torch.Tensor]:
    states = [weights(run, f"step_{step:07d}.ckpt") for step in steps]
    return {name: sum(state[name].double() for state in states).div(len(steps)).float() for name in states[0]}


@pytest.mark.parametrize(
    ("choice", "name", "steps"),
    [
        ("last=3", "average_last_3.ckpt", (5, 7, 11)),
        ("last=1", "average_last_1.ckpt", (11,)),
        ("steps=[11,3]", "average_steps_3_11.ckpt", (3, 11)),
    ],
)
def test_the_chosen_checkpoints_are_averaged_into_a_file_that_nobody_takes_for_one(
    run: Path, command: Lab, choice: str, name: str, steps: tuple[int, ...]
) -> None:
    command(f"run={run}", choice)
    expected = mean_of(run, *steps)
    assert all(torch.equal(value, expected[key]) for key, value in weights(run, name).items())
    assert checkpoint.read(run / "checkpoints" / name).step == max(steps)
    assert list(lab.kept_checkpoints(run)) == list(STEPS)


def test_the_best_are_those_with_the_highest_dev_bleu(run: Path, command: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def score(dev: lab.DevSet, mean: averaging.Average) -> tuple:
        return Score("BLEU", {3: 23.0, 5: 29.0, 7: 19.0, 11: 23.0}[max(mean.steps)], ""), None

    monkeypatch.setattr(lab.DevSet, "score", score)
    command(f"run={run}", "best=2")
    expected = mean_of(run, 5, 11)  # of equals the later one
    assert all(torch.equal(value, expected[key]) for key, value in weights(run, "average_best_2.ckpt").items())


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ([], "got none: .*last=5; .*best=5; .*steps=.*; .*curve=true"),
        (["last=2", "best=2"], "got last and best: "),
        (["last=2", "curve=true"], "got last and curve: "),
        (["last=5"], "last must be a number of kept checkpoints, 1 to 4, got 5; .* has 4: 3, 5, 7, 11"),
        (["last=0"], "1 to 4, got 0"),
        (["best=-1"], "best must be .* got -1"),
        (["last=2.0"], "got 2.0"),
        (["last=true"], "got True"),
        (["steps=[3,3]"], r"steps=\[3, 3\] must list .* none of them twice"),
        (["steps=[]"], "must list one step or more"),
        (["steps=[3,13]"], "no checkpoint of step 13; .* has 4: 3, 5, 7, 11"),
        (["steps=3"], "steps must be a list, got 3"),
        (["curve=4"], "curve must be true or false, got 4"),
        (["last=2", "output=x/step_0000013.ckpt"], "would be taken for a checkpoint to resume from"),
        (["checkpoints=[a.ckpt]", "output=x.ckpt"], "checkpoints goes with output and without run"),
        (["last=2", "run=nowhere"], "run=nowhere has no checkpoints/step_"),
        (["last=2", "run=null"], "last goes with run"),
    ],
    ids=" ".join,
)
def test_a_choice_that_cannot_be_is_refused(run: Path, command: Lab, choice: list[str], words: str) -> None:
    files = sorted(run.rglob("*"))
    with pytest.raises(ValueError, match=words) as error:
        command(*([] if any("run=" in part for part in choice) else [f"run={run}"]), *choice)
    assert "\n" not in str(error.value)
    assert sorted(run.rglob("*")) == files


def test_files_need_a_place_for_their_average(command: Lab) -> None:
    with pytest.raises(ValueError, match="checkpoints goes with output and without run"):
        command("checkpoints=[a.ckpt]")


def test_the_curve_decodes_the_averages_of_the_last_and_reads_each_file_once(
    run: Path, command: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, alive, scored = [], [], []
    read_raw, score = checkpoint.read_raw, lab.DevSet.score

    def watched_read(path: Path) -> dict:
        gc.collect()
        content = read_raw(path)
        assert not any(reference() is not None for reference in alive)  # the one before was let go
        alive.append(weakref.ref(content["state_dict"]["model.embedding.weight"]))
        read.append(path.stem)
        return content

    def watched_score(dev: lab.DevSet, mean: averaging.Average) -> tuple:
        scored.append(mean.content()["state_dict"])
        return score(dev, mean)

    monkeypatch.setattr(checkpoint, "read_raw", watched_read)
    monkeypatch.setattr(lab.DevSet, "score", watched_score)
    command(f"run={run}", "curve=true", "inference.beam=2")
    monkeypatch.undo()
    assert read[1:] == [f"step_{step:07d}" for step in reversed(STEPS)]  # and first the config
    for k, state in enumerate(scored, start=1):
        expected = mean_of(run, *STEPS[-k:])
        assert all(torch.equal(value, expected[name.removeprefix("model.")]) for name, value in state.items())
    with (run / "averaging" / "curve.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["steps"] for line in lines] == ["11", "11 7", "11 7 5", "11 7 5 3"]
    assert (run / "averaging" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "dev, beam 2, alpha 0.6: nrefs:1" in capsys.readouterr().out


REFERENCES = [
    f"the {a} saw a {b} in the {c} ." for a in ("dog", "cat") for b in ("boy", "girl") for c in ("sea", "sun")
]
SYSTEMS = [[line.replace(old, new) for line in REFERENCES] for old, new in (("dog", "cow"), ("sea", "bay"), ("x", "y"))]


def test_the_points_have_the_bleu_and_the_tests_of_their_systems() -> None:
    figures = [BLEU().corpus_score(system, [REFERENCES]).score for system in SYSTEMS]
    counts = [Bleu().counts(system, [REFERENCES], None) for system in SYSTEMS]
    points = lab.curve_points([7, 5, 3], Bleu(), counts)
    resampled = Bleu().value(resampled_sums(counts))
    for point, figure, drawn in zip(points, figures, resampled, strict=True):
        assert point.low <= figure + 1e-9
        assert figure <= point.high + 1e-9
        assert point.gain.value == pytest.approx(figure - figures[0])
        assert point.gain.low <= point.gain.value <= point.gain.high
        assert point.p_first == pytest.approx(p_value(figure - figures[0], drawn - resampled[0]))
    assert (points[0].p_first, points[2].p_best) == (1, 1)  # of the first with itself, of the best with itself
    assert points[2].score == pytest.approx(100)
    assert np.isclose(points[0].p_best, points[2].p_first)


def test_the_whole_average_of_a_curve_is_the_one_that_the_run_reports(aiayn: CommandLine, tmp_path: Path) -> None:
    import json

    aiayn(f"run_dir={tmp_path}", "training.max_steps=9", "training.validate_steps=9")
    aiayn("task=average", f"run={tmp_path}", "curve=true", "trainer=cpu", small=False)
    scores = json.loads((tmp_path / "result.json").read_text())["scores"]
    with (tmp_path / "averaging" / "curve.csv").open() as file:
        bleu = [float(line["score"]) for line in csv.DictReader(file)]
    assert len(bleu) == 3
    for name, value in (("last", bleu[0]), ("averaged", bleu[-1])):
        assert value == pytest.approx(scores[name]["dev"]["bleu"]["value"])
