"""docs/own_idea.md, walked: its files are written, its commands called, in miniature."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, environment
from hydra import compose, initialize_config_dir

PAGE = (ROOT / "docs" / "own_idea.md").read_text()
FILES = dict(re.findall(r"^`((?:ideas|conf)/\S+)`.*?```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
FIRST, LATER = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


def write(folder: Path) -> None:
    """Write the files of the page."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def test_an_idea_takes_twenty_lines_and_three_yaml_files() -> None:
    code = {path: text for path, text in FILES.items() if path.endswith(".py")}
    assert len(FILES) - len(code) == 3
    assert sum(len(text.splitlines()) for text in code.values()) <= 20
    listing = PAGE[: PAGE.index("`ideas/near.py`.")]
    assert all(path in listing for path in FILES)


@pytest.mark.parametrize("folder", ["page", "extension"])
def test_a_sweep_of_ones_own_has_another_folder_at_another_scale(folder: str, tmp_path: Path) -> None:
    write(tmp_path)
    conf, sweep = (tmp_path / "conf", "near") if folder == "page" else (ROOT / "tests" / "extension" / "conf", "mine")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        at = [f"hydra.searchpath=[file://{conf}]", f"sweep={sweep}", "outputs=/a"]
        full, tiny = (
            compose("config", overrides=[*at, f"scale={scale}"], return_hydra_config=True) for scale in ("full", "tiny")
        )
    assert full.hydra.sweep.dir == f"/a/sweeps/{sweep}"
    assert tiny.hydra.sweep.dir == f"/a/sweeps/{sweep}_tiny"


@pytest.mark.slow
def test_the_page_leads_from_an_empty_folder_to_a_verdict(tmp_path: Path) -> None:
    def call(line: str, *more: str, stdin: str = "") -> str:
        words = [str(ROOT / "src" / "run.py") if word == "src/run.py" else word for word in shlex.split(line)]
        done = subprocess.run(
            [sys.executable, *words[1:], *more],
            cwd=tmp_path,
            env={**environment(), "AIAYN_OUTPUTS": str(tmp_path / "outputs"), "COLUMNS": "120"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    write(tmp_path)
    plan, sweep, report = FIRST
    # Two seeds of the three: as many as a verdict needs.
    small = [*SMALL, "seed=1,2", "training.max_steps=12", "metrics=[bleu,perplexity]"]
    assert "`relative=Near, seed 1`" in PAGE
    assert "relative=Near, seed 1" in call(plan, *small)
    call(sweep, *small, "launcher.parallel=2")
    said = call(report, *small)
    assert "A bias for what is near makes better translations." in said
    assert "a verdict needs two seeds" not in said
    assert "command: python src/run.py --config-dir conf sweep=near model.layers=1 " in said
    assert "nrefs:1|case:mixed" in said
    with (tmp_path / "outputs" / "sweeps" / "near" / "report" / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {(line["row"], line["state"], line["done"]) for line in lines} == {
        ("relative=Near", "done", "2"),
        ("relative=null", "done", "2"),
    }
    assert all(float(line["bleu"]) >= 0 and float(line["perplexity"]) > 1 for line in lines)
    runs = [path.parents[1] for path in tmp_path.glob("outputs/sweeps/near/*/checkpoints/averaged.ckpt")]
    near = next(run for run in runs if "attention=near" in run.name)
    assert len(runs) == 4
    [line] = LATER
    text, _, translate = line.partition(" | ")
    assert call(translate.replace("RUN", str(near)), stdin=shlex.split(text)[1] + "\n")
