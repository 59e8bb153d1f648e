"""Claims: what is refused, and when one holds, does not, or cannot be told."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_runs import config, write_run

from aiayn.evaluation.significance import Interval
from aiayn.report.claims import FAILS, HOLDS, UNKNOWN, Claim, decide, judge, judge_all, read_claim
from aiayn.report.rows import Row, bootstrap, rows_of
from aiayn.report.runs import Run, read_folder

ROOT = Path(__file__).parents[2]
ENTRY = {"text": "x", "rows": ["a"], "against": ["b"], "metric": "bleu", "direction": "worse"}


def claim(**changed: Any) -> Claim:
    return read_claim("x", ENTRY | changed, {"a", "b", "c"})


@pytest.mark.parametrize(
    ("direction", "metric", "low", "high", "verdict"),
    [
        ("worse", "bleu", -2, -1, HOLDS),
        ("worse", "bleu", 1, 2, FAILS),
        ("worse", "bleu", -1, 1, UNKNOWN),
        ("better", "bleu", 1, 2, HOLDS),
        ("worse", "perplexity", 1, 2, HOLDS),
        ("better", "perplexity", 1, 2, FAILS),
        ("better", "perplexity", -2, -1, HOLDS),
        ("equal", "bleu", -0.4, 0.4, HOLDS),
        ("equal", "bleu", 0.1, 0.4, HOLDS),
        ("equal", "bleu", 0.4, 0.6, UNKNOWN),
        ("equal", "bleu", 0.6, 0.9, FAILS),
        ("equal", "bleu", -0.9, -0.6, FAILS),
    ],
)
def test_the_verdict_says_on_which_side_the_interval_is(
    direction: str, metric: str, low: float, high: float, verdict: str
) -> None:
    asked = claim(direction=direction, metric=metric, **({"margin": 0.5} if direction == "equal" else {}))
    assert decide(asked, Interval((low + high) / 2, low, high)) == verdict


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "claims.x must have text, rows"),
        (ENTRY | {"metrik": "bleu"}, "claims.x.metrik is no key of a claim; there are text, rows"),
        (ENTRY | {"text": None}, "claims.x.text is missing"),
        (ENTRY | {"rows": []}, "claims.x.rows is missing"),
        (ENTRY | {"rows": {"a": 1}}, "claims.x.rows must be a list"),
        (
            ENTRY | {"rows": ["nowhere"]},
            "claims.x.rows names 'nowhere', which is neither a row of this report nor an exp",
        ),
        (ENTRY | {"against": ["a"]}, "claims.x compares a with itself"),
        (ENTRY | {"metric": "chrf"}, "claims.x.metric must be one of bleu, perplexity, got 'chrf'"),
        (ENTRY | {"direction": "up"}, "claims.x.direction must be one of worse, better, equal, got 'up'"),
        (ENTRY | {"direction": "equal"}, "claims.x.margin must be a number above 0 with direction=equal"),
        (
            ENTRY | {"margin": 0.5},
            "claims.x.margin must be a number above 0 with direction=equal, and absent otherwise",
        ),
    ],
)
def test_malformed_claims_are_refused_in_a_line(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read_claim("x", entry, {"a", "b"})
    assert "\n" not in str(error.value)


def rows(folder: Path, **qualities: float) -> list[Row]:
    """A row of three seeds for each quality."""
    for name, quality in qualities.items():
        for seed in (1, 2, 3):
            paper = {"bleu": round(40 * quality, 1), "perplexity": 5.0}
            made = config(name, seed=seed, paper=paper)
            write_run(folder / f"{name},seed={seed}", made, quality=quality + seed / 1000, nats=2 - quality)
    found = rows_of(read_folder(folder))
    bootstrap(found)
    return found


def test_a_clear_difference_decides_and_a_small_one_does_not(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6, c=0.6)
    verdict = judge(claim(), found)
    assert verdict.verdict == HOLDS
    assert verdict.paper == pytest.approx(-4)
    assert verdict.effect is not None
    assert verdict.effect.low < verdict.effect.value < verdict.effect.high < 0
    assert judge(claim(direction="better"), found).verdict == FAILS
    assert judge(claim(metric="perplexity"), found).verdict == HOLDS
    assert judge(claim(rows=["b"], against=["c"]), found).verdict == UNKNOWN
    assert judge(claim(rows=["b"], against=["c"], direction="equal", margin=5.0), found).verdict == HOLDS


def test_the_best_of_several_rows_counts(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6, c=0.4)
    alone, among = judge(claim(), found), judge(claim(against=["c", "b"]), found)
    assert alone.effect == among.effect
    alone, among = (
        judge(claim(metric="perplexity"), found),
        judge(claim(metric="perplexity", against=["c", "b"]), found),
    )
    assert alone.effect == among.effect


def test_seeds_widen_the_interval(tmp_path: Path) -> None:
    for seed, quality in ((1, 0.56), (2, 0.6), (3, 0.64)):
        write_run(tmp_path / f"a,seed={seed}", config("a", seed=seed), quality=quality)
        write_run(tmp_path / f"b,seed={seed}", config("b", seed=seed), quality=0.6)
    wide = rows_of(read_folder(tmp_path))
    narrow = rows_of([run for row in wide for run in row.runs if run.config["seed"] == 2])
    widths = []
    for found in (wide, narrow):
        bootstrap(found)
        effect = judge(claim(), found).effect
        assert effect is not None
        widths.append(effect.high - effect.low)
    assert widths[0] > 1.2 * widths[1]


def test_rows_draw_their_seeds_apart(tmp_path: Path) -> None:
    for seed, quality in ((1, 0.56), (2, 0.6), (3, 0.64)):  # drawn together, these would cancel
        for name in ("a", "b"):
            write_run(tmp_path / f"{name},seed={seed}", config(name, seed=seed), quality=quality)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    effect = judge(claim(), found).effect
    spread = found[0].figure("bleu")
    assert effect is not None
    assert spread is not None
    assert spread.deviation is not None
    assert effect.high - effect.low > 2 * spread.deviation


def test_missing_and_unfinished_rows_leave_a_claim_open_and_are_named(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6)
    verdict = judge(claim(against=["b", "c"]), found)
    assert (verdict.verdict, verdict.effect, verdict.reason) == (UNKNOWN, None, "c is not among the rows")
    extra = Run.read(tmp_path / "b,seed=4", row="b,seed=4", config=found[1].runs[0].config | {"seed": 4})
    found = rows_of([run for row in found for run in row.runs] + [extra])
    bootstrap(found)
    verdict = judge(claim(), found)
    assert (verdict.verdict, verdict.reason) == (UNKNOWN, "b is 3 done, 1 missing")


def test_rows_without_statistics_leave_a_claim_open(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("a"))
    write_run(tmp_path / "b", config("b"), statistics=False)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert judge(claim(), found).reason == "b has no statistics"


def test_claims_about_other_rows_are_not_put(tmp_path: Path) -> None:
    found = rows(tmp_path, b=0.5, c=0.5)
    assert judge_all({"x": ENTRY}, found, {"a"}) == []
    (verdict,) = judge_all({"x": ENTRY, "y": ENTRY | {"rows": ["c"]}, "removed": None}, found, {"a"})
    assert verdict.claim.name == "y"


def test_the_papers_claims_hold_in_the_papers_own_figures() -> None:
    experiments = {path.stem: path for path in (ROOT / "experiments").glob("*.yaml")}
    for path in (ROOT / "conf" / "claims").glob("*.yaml"):
        for name, entry in yaml.safe_load(path.read_text()).items():
            asked = read_claim(name, entry, experiments)
            found = [
                Row(
                    row,
                    [Run(Path(), row, {"paper": yaml.safe_load(experiments[row].read_text())["paper"]})],
                    "last",
                    "dev",
                )
                for row in (*asked.rows, *asked.against)
            ]
            paper = judge(asked, found).paper
            assert paper is not None
            assert decide(asked, Interval(paper, paper, paper)) == HOLDS, name
            assert "(section " in asked.text
