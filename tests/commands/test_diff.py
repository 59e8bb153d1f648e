"""task=diff: what of two runs differs, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from omegaconf import OmegaConf

from aiayn.commands.diff import diff


def write_run(folder: Path, *, heads: int = 8, accelerator: str = "cpu", bleu: float = 23.5, **result: Any) -> Path:
    """A run with some of the keys that a real one has, its own folder among them."""
    config = {
        "trainer": {"accelerator": accelerator},
        "model": {"heads": heads, "attention": {"heads": heads, "dropout": 0.1}, "layers": 2},
        "seed": len(folder.name),
        "run_dir": str(folder),
        "logger": {"csv": {"save_dir": str(folder)}},
    }
    content = {
        "status": "done",
        "config": config,
        "command": ["run.py", f"model.heads={heads}"],
        "versions": {"torch": "2.13.0", "lightning": "2.6"},
        "git_commit": "0123",
        "steps": 100,
        "training_seconds": 17.0 + len(folder.name),
        "scores": {"last": {"step": 100, "dev": {"bleu": {"value": bleu, "signature": "13a"}, "perplexity": 2.0}}},
    }
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(content | result))
    return folder


def said(one: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The lines that are printed, by their words, without rules and heads."""
    diff(OmegaConf.create({"a": str(one), "b": str(other)}))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line and not line[0].startswith("\u2500")]


def test_what_differs_is_grouped_by_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_run(tmp_path / "one")
    versions = {"torch": "2.14.0", "lightning": "2.6"}
    other = write_run(tmp_path / "second", heads=4, accelerator="gpu", bleu=24.123456789, versions=versions, steps=90)
    assert said(one, other, capsys) == [
        ["a:", f"{one},", "done"],
        ["b:", f"{other},", "done"],
        ["key", "a", "b"],
        ["experiment", "seed", "3", "6"],
        ["model", "heads", "8", "4"],
        ["trainer", "accelerator", "cpu", "gpu"],
        ["versions", "torch", "2.13.0", "2.14.0"],
        ["run", "steps", "100", "90"],
        ["scores", "last.dev.bleu", "23.5", "24.1235"],
    ]


def test_what_one_of_them_lacks_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_run(tmp_path / "one", data_fingerprint="abc")
    lines = said(one, write_run(tmp_path / "two"), capsys)
    assert lines[3:] == [["run", "data_fingerprint", "abc"], ["No", "setting", "differs."]]


def test_a_test_set_that_one_of_them_lacks_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score = {"value": 23.5, "signature": "13a"}
    both = {"step": 100, "dev": {"bleu": score, "perplexity": 2.0}}
    more = {
        "last": {**both, "test": {"bleu": score, "chrf": score, "perplexity": 2.0}},
        "best": {**both, "dev": {"bleu": score, "ter": score}},
    }
    one = write_run(tmp_path / "one", scores={"last": both, "best": {**both, "dev": {"bleu": score}}})
    lines = said(one, write_run(tmp_path / "two", scores=more), capsys)
    assert lines[3:-1] == [["scores", "last.test", "5", "values"], ["best.dev.ter", "23.5"]]


def test_every_difference_has_a_key_also_from_a_run_without_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = write_run(tmp_path / "two", status="failed")
    result = json.loads((failed / "result.json").read_text())
    del result["scores"]
    (failed / "result.json").write_text(json.dumps(result))
    assert ["{}"] not in said(write_run(tmp_path / "one"), failed, capsys)


def test_runs_that_are_the_same_but_for_place_and_time_do_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(write_run(tmp_path / "one"), write_run(tmp_path / "two", training_seconds=9), capsys)
    assert lines[2][:2] == ["Nothing", "differs:"]


def test_what_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^b=\S+ is no run: it has no result.json that can be read; name a run's"):
        diff(OmegaConf.create({"a": str(write_run(tmp_path / "one")), "b": str(tmp_path)}))


def test_a_run_may_be_held_against_an_experiment(tmp_path: Path, in_process: CommandLine) -> None:
    run = write_run(tmp_path / "one", heads=4)
    said = in_process("task=diff", f"a={run}", "b=table3_a_h1").stdout
    assert f"a: {run}, done" in said
    assert "b: experiment=table3_a_h1\n" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["heads", "4", "1"] in [line[-3:] for line in lines]
    assert not any(line[:1] in (["versions"], ["scores"], ["run"]) for line in lines)  # which an experiment has not
    twins = in_process("task=diff", "a=table3_base", "b=table3_b_dk16", "scale=small").stdout
    assert ["d_k", "32", "8"] in [line.split()[-3:] for line in twins.splitlines()]


def test_a_run_may_be_held_against_a_recipe(tmp_path: Path, in_process: CommandLine) -> None:
    said = in_process("task=diff", "a=paper", "b=tensor2tensor", "model=base", "data=wmt14_ende").stdout
    lines = [line.split() for line in said.splitlines()]
    assert said.startswith("a: recipe=paper\nb: recipe=tensor2tensor\n")
    assert ["training", "warmup_steps", "4000", "8000"] in lines
    assert ["inference", "max_extra_length", "50", "100"] in lines
    assert "callbacks" not in said  # which repeat what stands above
    run = write_run(tmp_path / "one", heads=4)
    said = in_process("task=diff", f"a={run}", "b=marian", "model=big").stdout
    assert ["heads", "4", "16"] in [line.split()[-3:] for line in said.splitlines()]


def test_neither_a_run_nor_an_experiment_is_refused(in_process: CommandLine) -> None:
    done = in_process("task=diff", "a=nowhere", "b=table3_base")
    assert done.returncode == 1
    assert "a=nowhere is no run: it has no result.json that can be read; name a run's folder, an exp" in done.stderr
