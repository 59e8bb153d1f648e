"""task=report as a user runs it."""

from pathlib import Path

import pytest
from conftest import CommandLine
from fake_runs import config, write_run

FILES = {
    "index.html",
    "table.md",
    "table.csv",
    "table.tex",
    "learning_curves.png",
    "perplexity_curves.png",
    "marginals.png",
    "score_over_flops.png",
}


@pytest.mark.slow
def test_a_folder_of_runs_gives_a_report(aiayn: CommandLine, tmp_path: Path) -> None:
    for heads in (8, 1):
        name = "table3_base" if heads == 8 else "table3_a_h1"
        made = config(name, paper={"bleu": 25.0, "perplexity": 5.0}, model__heads=heads)
        write_run(tmp_path / name, made, quality=0.4 + heads / 100)
    said = aiayn("task=report", f"folder={tmp_path}", small=False).stdout
    assert {path.name for path in (tmp_path / "report").iterdir()} == FILES
    assert all(str(tmp_path / "report" / name) in said for name in FILES)
    assert "table3_a_h1" in said
    assert "Single-head attention is worse" in said
    assert "only on these sentences: " in said
    assert "a verdict needs two seeds of both rows" in said
    assert "32 against eight" not in said  # a row that is not here


@pytest.mark.slow
def test_the_command_line_chooses_the_scores_of_a_folder(aiayn: CommandLine, tmp_path: Path) -> None:
    write_run(tmp_path / "x", {**config("x"), "report": {"checkpoint": "last", "split": "dev"}})
    other = ["report.checkpoint=averaged", "report.split=test"]
    said = aiayn("task=report", f"folder={tmp_path}", *other, "objective=ter", small=False).stdout
    assert "dev TER" in (tmp_path / "report" / "index.html").read_text()
    assert "test of wmt14_ende, checkpoint: averaged" in said
    assert "without scores" in said
    refused = aiayn("task=report", f"folder={tmp_path}", "objective=mine", code=1, small=False).stderr
    assert "objective=mine is no score of these runs; they have bleu, bleu_paper, chrf, perplexity, ter." in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "task=report needs a sweep or a folder of runs"),
        (["sweep=table3_e", "folder=."], "one of them"),
        (["folder=nowhere"], "nowhere holds no run"),
    ],
)
def test_without_runs_a_line_says_what_to_give(aiayn: CommandLine, arguments: list[str], message: str) -> None:
    said = aiayn("task=report", *arguments, code=1, small=False).stderr.strip()
    assert message in said
    assert said.count("\n") == 0
