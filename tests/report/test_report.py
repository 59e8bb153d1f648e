"""task=report as a user runs it."""

import os
from pathlib import Path

import pytest
from conftest import CommandLine
from fake_runs import config, write_run

from aiayn.commands import report
from aiayn.report.rows import rows_of
from aiayn.runs.run import read_folder

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


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "report.min_difference=0.3",
            "report.min_difference must be numbers by score, 0 or more, as {bleu: 0.3}, got 0.3",
        ),
        ("report.min_difference.bleu=-1", "0 or more, as {bleu: 0.3}, got {'bleu': -1}"),
        ("report.min_difference.bleu=much", "got {'bleu': 'much'}"),
        ("against=nowhere", "has no report (table.csv); run task=report there first"),
        ("against=", "against must be the path of a file or folder, got ''"),
    ],
)
def test_what_nothing_can_be_compared_by_is_a_line(
    argument: str, message: str, in_process: CommandLine, tmp_path: Path
) -> None:
    write_run(tmp_path / "x", config("x"))
    done = in_process("task=report", f"folder={tmp_path}", argument)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr
    assert not (tmp_path / "report").exists()


def test_halving_is_replayed_at_the_steps_at_which_a_run_would_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(seed: int, curve: list[float], **data: object) -> None:
        made = {**config("x", seed=seed), "data": {"name": "x", **data}}
        run = write_run(tmp_path / f"x{seed}", made)
        lines = [f"{250 * number - 1},{value}" for number, value in enumerate(curve, 1)]
        (run / "metrics" / "version_0" / "metrics.csv").write_text("\n".join(["step,dev/perplexity", *lines]) + "\n")
        os.utime(run / "result.json", (seed, seed))

    for seed in range(1, 8):
        log(seed, [9, 8, 7, 6, 5, 4, 3, 2])
    log(8, [9, 8, 7, 66, 5, 4, 3, 1.5])  # behind at step 1,000 alone, and best at the end
    rows = rows_of(read_folder(tmp_path))
    ((label, told),) = report.halving_note(rows)
    assert label == "halving"
    assert told == (
        "callbacks=halving would have saved 6% of the steps of these 8 runs; it stops 1, 1 of them in the better half "
        "at the end (x, seed 8); the best to go on ends 0.288 nats a piece behind the best"
    )
    monkeypatch.setattr(report, "FEWEST_REPLAYED", 9)
    assert report.halving_note(rows) == []
