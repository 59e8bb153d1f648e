"""task=dashboard, and the W&B sweep that drives the same entry point; a server is nowhere needed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import ROOT, CommandLine, composed
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from aiayn.commands.dashboard import dashboard

pytestmark = pytest.mark.slow

pytest.importorskip("wandb_workspaces")
HEADS = ROOT / "sweeps" / "wandb" / "heads.yaml"


@pytest.fixture
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def in_a_sweep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": {"mode": RunMode.MULTIRUN}}))
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield


def rows(tmp_path: Path, *overrides: str) -> list[Any]:
    made = []
    for name in ("table3_base", "table3_a_h1"):
        choices = ("task=dashboard", f"experiment={name}", "scale=tiny", f"run_dir={tmp_path}/swept/{name}")
        made.append(compose("config", overrides=[*choices, *overrides]))
        OmegaConf.resolve(made[-1])
    return made


def test_without_a_login_both_are_written_beside_the_sweep(
    aiayn: CommandLine, tmp_path: Path, logged_out: None
) -> None:
    done = aiayn("task=dashboard", "sweep=table3_a", "scale=tiny", f"outputs={tmp_path}", small=False)
    file = tmp_path / "sweeps" / "table3_a_tiny" / "report" / "dashboard.json"
    assert done.stdout.splitlines()[0] == str(file)
    assert [line for line in done.stdout.splitlines() if "wandb login" in line] == done.stdout.splitlines()[1:]
    both = json.loads(file.read_text())
    assert both["workspace"]["displayName"] == "table3_a_tiny"
    assert "| table3_a_h32 | 5.01 |" in json.dumps(both["report"])
    assert "Single-head attention" in json.dumps(both["report"])
    assert "Dropout" not in json.dumps(both["report"])  # a claim about other rows


def test_without_a_sweep_there_is_nothing_to_compare(aiayn: CommandLine) -> None:
    done = aiayn("task=dashboard", small=False, code=1)
    assert done.stderr.splitlines()[-1].startswith("error: task=dashboard compares the runs of a sweep")


def test_with_a_login_both_are_saved_where_the_runs_are(
    tmp_path: Path, in_a_sweep: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

    def save(built: Any) -> Any:
        return SimpleNamespace(url=f"{type(built).__name__} of {built.entity}/{built.project}")

    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(default_entity="me"))
    monkeypatch.setattr(Workspace, "save", save)
    monkeypatch.setattr(Report, "save", save)
    dashboard(*rows(tmp_path))
    assert capsys.readouterr().out.splitlines()[1:] == ["Workspace of me/aiayn", "Report of me/aiayn"]
    dashboard(*rows(tmp_path, "logger.wandb.entity=team", "logger.wandb.project=other"))
    assert capsys.readouterr().out.splitlines()[1:] == ["Workspace of team/other", "Report of team/other"]

    def refuse(built: Any) -> Any:
        raise TimeoutError("no\nanswer")

    monkeypatch.setattr(Report, "save", refuse)
    with pytest.raises(ValueError, match="W&B server did not do it: no answer"):
        dashboard(*rows(tmp_path))


def test_another_logger_names_no_project(tmp_path: Path, in_a_sweep: None) -> None:
    (row, _) = rows(tmp_path)
    del row.logger.wandb
    with pytest.raises(ValueError, match="needs logger=wandb"):
        dashboard(row)


def test_a_malformed_claim_is_refused_as_in_a_report(tmp_path: Path, in_a_sweep: None) -> None:
    with pytest.raises(ValueError, match=r"claims\.mine\.row is missing"):
        dashboard(*rows(tmp_path, "+claims.mine={text: x}"))


def test_an_agent_of_the_wandb_sweep_calls_a_run_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pytest.importorskip("wandb.wandb_agent")
    started: list[dict[str, Any]] = []

    def start(**process: Any) -> Any:
        started.append(process)
        return SimpleNamespace()

    monkeypatch.setattr(agent, "AgentProcess", start)
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "")  # so that what the agent sets is forgotten again
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    sweep = yaml.safe_load(HEADS.read_text())
    (key,) = sweep["parameters"]
    ours = agent.Agent(api=None, queue=None, sweep_id="sweep7")
    ours._sweep_command = sweep["command"]
    for number, value in enumerate(sweep["parameters"][key]["values"]):
        ours._command_run(
            {"type": "run", "run_id": f"run{number}", "program": sweep["program"], "args": {key: {"value": value}}}
        )
        program, overrides = started[-1]["command"][1:3], started[-1]["command"][3:]
        assert program == ["python", "src/run.py"]
        assert (ROOT / program[1]).exists()
        cfg = composed(*overrides)
        assert OmegaConf.select(cfg, key) == value
        assert cfg.logger.wandb.name == f"heads_{value}"
        assert cfg.run_dir == f"{cfg.outputs}/sweeps/wandb_sweep7/run{number}"
    assert len({tuple(process["command"]) for process in started}) == len(started) == 5


def test_the_wandb_sweeps_are_no_sweeps_of_hydra(aiayn: CommandLine) -> None:
    done = aiayn("sweep=nothing_like_it", small=False, code=1)
    choices = done.stderr.splitlines()[-1]
    assert "table3" in choices
    assert "wandb" not in choices
