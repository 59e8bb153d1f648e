"""What W&B is told of a run, read back from the files that it keeps offline."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine, composed
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import OmegaConf

wandb = pytest.importorskip("wandb")

from aiayn.training import tracking  # noqa: E402
from aiayn.training.tracking import final_figures, loggers  # noqa: E402

pytestmark = pytest.mark.slow

PAPER = "+paper={bleu: 24.9, perplexity: 5.29}"


def records(folder: Path, number: int = 0) -> list[dict[str, Any]]:
    """What the run in the folder told W&B, in order; a resumed run has several files."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return [json.loads(line) for line in inspect(files[number], "--json").splitlines()]


def summary(folder: Path, number: int = 0) -> dict[str, Any]:
    """State, config, tags and summary of the run in the folder."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return json.loads(inspect(files[number], "--summary", "--json"))


def inspect(file: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *flags, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def only(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in found if record["type"] == kind]


def steps(found: list[dict[str, Any]]) -> list[int]:
    items = (history["item"] for history in only(found, "history"))
    return [item["trainer/global_step"] for item in items if "trainer/global_step" in item]


@pytest.fixture
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home without a login, and W&B in this process as if it had not been used before."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    yield
    wandb.teardown()


def settings(folder: Path, *overrides: str) -> Any:
    return OmegaConf.to_container(composed("logger=wandb", f"run_dir={folder}", *overrides))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = (record for record in caplog.records if record.name == "aiayn.training.tracking")
    return [record.getMessage().split(":")[0] for record in ours]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "table3_tiny" / "table3_a_h1"
    made.mkdir(parents=True)
    return made


def test_a_row_of_a_sweep_is_one_run_also_on_several_ranks_and_when_it_resumes(
    aiayn: CommandLine, outputs: Path, logged_out: None
) -> None:
    common = ["logger=wandb", "trainer=ddp_cpu", "name=table3_wandb", PAPER, "training.validate_steps=5"]
    done = aiayn(*common, "sweep=seeds", "seed=1", "training.max_steps=8")
    assert (done.stdout + done.stderr).count("W&B has no login") == 1
    (row,) = (file.parent for file in (outputs / "sweeps" / "table3_wandb_seeds").glob("*/result.json"))
    (run,) = only(records(row), "run")
    assert len(list(row.glob("wandb/*run-*"))) == 1
    assert (run["run_group"], run["display_name"], run["project"]) == ("table3_wandb_seeds", row.name, "aiayn")
    assert run["run_id"] == (row / "wandb_id.txt").read_text()
    told, result = summary(row), json.loads((row / "result.json").read_text())
    assert sorted(told["tags"]) == ["full", "seeds", "table3"]
    assert told["exit_code"] == 0
    assert (told["config"]["model"]["heads"], told["config"]["run_dir"]) == (2, str(row))
    figures = told["summary"]
    assert (figures["paper/bleu"], figures["paper/perplexity"]) == (24.9, 5.29)
    assert "paper/parameters" not in figures  # the paper has none
    assert figures["averaged/test/chrf"] == result["scores"]["averaged"]["test"]["chrf"]["value"]
    assert (figures["parameters"], figures["steps"]) == (result["parameters"], 8)

    # As after a kill behind the last checkpoint but one: its steps are repeated.
    max((row / "checkpoints").glob("step_*.ckpt")).unlink()
    aiayn(*common, "seed=1", f"run_dir='{row}'", "training.max_steps=11")
    (again,) = only(records(row, 1), "run")
    same = ("run_id", "run_group", "display_name")
    assert [again[key] for key in same] == [run[key] for key in same]
    logged = [*steps(records(row)), *steps(records(row, 1))]
    assert all(earlier <= later for earlier, later in pairwise(logged))
    assert logged[-1] == 11


def test_a_failed_run_counts_as_failed_and_the_next_one_is_another(
    folder: Path, logged_out: None, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(folder, PAPER)

    def fail() -> None:
        with loggers(config["logger"], folder, config) as opened:
            opened[-1].log_metrics({"dev/bleu": 1.5}, step=3)
            opened[-1].log_metrics({"dev/bleu": 1.25}, step=2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert said(caplog) == ["W&B has no login"]
    told = summary(folder)
    assert told["exit_code"] == 1
    assert told["summary"]["dev/bleu"] == 1.5
    assert told["summary"]["paper/bleu"] == 24.9

    other = folder.with_name("table3_a_h4")
    other.mkdir()
    config = settings(other)
    with loggers(config["logger"], other, config):
        pass
    assert summary(other)["exit_code"] == 0
    assert summary(other)["run_id"] != told["run_id"]
    assert summary(other)["name"] == "table3_a_h4"


def test_only_the_first_rank_has_a_run(folder: Path, logged_out: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    config = settings(folder)
    with loggers(config["logger"], folder, config) as opened:
        opened[-1].log_metrics({"dev/bleu": 1.5}, step=3)
    assert list(folder.iterdir()) == []


def test_who_wants_no_wandb_gets_none(
    folder: Path, logged_out: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    config = settings(folder)
    with loggers(config["logger"], folder, config) as opened:
        opened[-1].log_metrics({"dev/bleu": 1.5}, step=3)
    assert not list(folder.glob("wandb/*run-*"))
    assert said(caplog) == []


def test_a_sweep_of_wandb_names_the_run(folder: Path, logged_out: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    monkeypatch.setenv("WANDB_RUN_ID", "run11")
    config = settings(folder)
    with loggers(config["logger"], folder, config):
        pass
    (run,) = only(records(folder), "run")
    assert (run["run_id"], run["sweep_id"], run["run_group"]) == ("run11", "sweep7", "table3_tiny")
    assert (folder / "wandb_id.txt").read_text() == "run11"


def test_a_server_that_is_not_there_is_one_line(
    folder: Path, logged_out: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise wandb.errors.CommError("connection\nrefused")

    monkeypatch.setattr(wandb, "init", init)
    config = settings(folder, "logger.wandb.mode=offline")
    with (
        pytest.raises(ValueError, match=r"logger=wandb: connection refused; .*mode=offline"),
        loggers(config["logger"], folder, config),
    ):
        pass


def test_a_run_that_goes_on_keeps_the_tags_that_it_has_there(folder: Path, logged_out: None) -> None:
    config = settings(folder, "name=table3_wandb", "logger.wandb.mode=offline")
    for _ in range(2):
        with loggers(config["logger"], folder, config):
            pass
    first, second = (only(records(folder, number), "run")[0] for number in (0, 1))
    assert second["run_id"] == first["run_id"]
    assert first["tags"] == ["table3", "full"]
    assert not second.get("tags")  # W&B would have them replace the first ones, and those that were added by hand


def test_final_figures_are_the_scores_and_the_costs() -> None:
    scores = {"step": 24, "dev": {"bleu": {"name": "BLEU", "value": 25.5}, "perplexity": 4.9, "words": "x"}}
    result = {"status": "done", "steps": 24, "scores": {"last": scores}, "config": {}}
    assert final_figures(result) == {"steps": 24, "last/dev/bleu": 25.5, "last/dev/perplexity": 4.9}
    assert final_figures({"status": "running"}) == {}


def test_composing_a_config_for_wandb_does_not_load_it() -> None:
    source = Path(__file__).parents[2] / "src"
    start = f"""
import runpy, sys
sys.argv = ["run.py", "--cfg", "job", "logger=wandb"]
runpy.run_path({str(source / "run.py")!r}, run_name="__main__")
print("loaded", "wandb" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "loaded False"


def test_training_without_wandb_does_not_need_it() -> None:
    tree = ast.parse(Path(tracking.__file__).read_text())
    imported = [node for node in tree.body if isinstance(node, ast.Import)]
    assert "wandb" not in {alias.name for node in imported for alias in node.names}


def test_a_user_without_a_home_is_told_what_to_set(
    logged_out: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 3)  # which has no entry in passwd
    configured = settings(folder)
    told = pytest.raises(ValueError, match=r"logger=wandb: Could not determine home directory\. Set HOME to a folder")
    with told, loggers(configured["logger"], folder, configured):
        pass
