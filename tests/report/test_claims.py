"""Claims: what is refused, and when one holds, does not, or cannot be told."""

import os
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from fake_runs import METRICS, config, write_run

from aiayn.commands import report
from aiayn.evaluation.significance import Interval, difference, holm
from aiayn.report.claims import (
    FAILS,
    HOLDS,
    LEVEL,
    SENTENCES,
    UNKNOWN,
    Claim,
    Verdict,
    claims_about,
    decide,
    judge,
    p_value,
    read_claim,
)
from aiayn.report.distance import bootstrap
from aiayn.report.rows import Row, rows_of
from aiayn.report.table import verdict_cells
from aiayn.runs.run import Run, read_folder

ROOT = Path(__file__).parents[2]
ENTRY = {"text": "x", "row": "a", "against": "b", "metric": "bleu", "direction": "worse"}


def claim(known: Sequence[str] = "abc", **changed: Any) -> Claim:
    return read_claim("x", ENTRY | changed, known)


def verdict(asked: Claim, effect: Interval) -> Verdict:
    """Of a claim that is the only one."""
    higher_is_better = METRICS[asked.metric].higher_is_better
    return decide(Verdict(asked, effect, UNKNOWN, p=p_value(effect, asked.margin), higher_is_better=higher_is_better))


@pytest.mark.parametrize(
    ("direction", "metric", "effect", "expected"),
    [
        ("worse", "bleu", -2, HOLDS),
        ("worse", "bleu", 2, FAILS),
        ("worse", "bleu", 1.9, UNKNOWN),
        ("better", "bleu", 2, HOLDS),
        ("worse", "perplexity", 2, HOLDS),
        ("better", "perplexity", 2, FAILS),
        ("better", "perplexity", -2, HOLDS),
    ],
)
def test_the_verdict_says_on_which_side_of_zero_the_effect_is(
    direction: str, metric: str, effect: float, expected: str
) -> None:
    asked, found = claim(direction=direction, metric=metric), Interval(effect, 1)  # 1.96 is significant
    assert verdict(asked, found).verdict == expected
    assert (expected == UNKNOWN) == (found.low <= 0 <= found.high)  # alone, a claim is decided by its interval


@pytest.mark.parametrize(
    ("effect", "error", "expected"),
    [
        (0.4, 0.05, HOLDS),
        (0.4, 0.1 / 1.65, HOLDS),  # one-sided: 1.645 errors from the margin
        (-0.4, 0.1 / 1.64, UNKNOWN),
        (0, 5, UNKNOWN),  # nothing is known
        (0.7, 0.2 / 1.95, UNKNOWN),
        (0.7, 0.2 / 1.97, FAILS),
        (-0.9, 0.1, FAILS),
    ],
)
def test_rows_are_equal_where_both_one_sided_tests_say_so(effect: float, error: float, expected: str) -> None:
    assert verdict(claim(direction="equal", margin=0.5), Interval(effect, error)).verdict == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "claims.x must have text, row"),
        (ENTRY | {"metrik": "bleu"}, "claims.x.metrik is no key of a claim; there are text, row, against"),
        (ENTRY | {"text": None}, "claims.x.text is missing"),
        (ENTRY | {"row": ""}, "claims.x.row is missing"),
        (ENTRY | {"row": "nowhere"}, "claims.x.row must name one row of this report, or one experiment, got 'nowhere'"),
        (ENTRY | {"against": ["b"]}, r"claims.x.against must name one row of .*, got \['b'\]; there are "),
        (ENTRY | {"against": "a"}, "claims.x compares a with itself"),
        (ENTRY | {"direction": "up"}, "claims.x.direction must be one of worse, better, equal, got 'up'"),
        (ENTRY | {"direction": "equal"}, "claims.x.margin must be a number above 0 with direction=equal"),
        (
            ENTRY | {"margin": 0.5},
            "claims.x.margin must be a number above 0 with direction=equal, and absent otherwise",
        ),
        (ENTRY | {"carries_over": True}, "claims.x.carries_over must be true or false, with the reason in because"),
        (
            ENTRY | {"because": "so"},
            "claims.x.carries_over must be true or false, .* got None and so; or leave both out",
        ),
        (ENTRY | {"carries_over": "yes", "because": "so"}, "claims.x.carries_over must be true or false"),
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


def one(asked: Claim, found: list[Row]) -> Verdict:
    """The verdict on a claim that is the only one of its report."""
    (verdict,) = judge([asked], found)
    return verdict


def test_a_clear_difference_decides_and_a_small_one_does_not(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6, c=0.6)
    verdict = one(claim(), found)
    assert verdict.verdict == HOLDS
    assert verdict.paper == pytest.approx(-4)
    assert verdict.effect is not None
    assert verdict.effect.low < verdict.effect.value < verdict.effect.high < 0
    assert one(claim(direction="better"), found).verdict == FAILS
    for metric, unit in (("perplexity", "PPL"), ("ter", "TER")):  # of which less is better
        worse = one(claim(metric=metric), found)
        assert (worse.verdict, worse.unit) == (HOLDS, unit)
        assert worse.effect is not None
        assert worse.effect.value > 0
        assert one(claim(metric=metric, direction="better"), found).verdict == FAILS
        assert one(claim(metric=metric, direction="better", row="b", against="a"), found).verdict == HOLDS
    assert one(claim(row="b", against="c"), found).verdict == UNKNOWN
    assert one(claim(row="b", against="c", direction="equal", margin=5.0), found).verdict == HOLDS


def test_claims_of_a_report_are_corrected_together(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6, c=0.6)
    asked = [claim(), claim(row="b", against="c"), claim(metric="perplexity")]
    alone, together = [one(each, found).p for each in asked], [each.p for each in judge(asked, found)]
    np.testing.assert_allclose(together, holm(np.array(alone)))


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("sentences", [0.2, 1.0])
def test_of_claims_about_equal_rows_seldom_any_is_decided(sentences: float, seeds: int) -> None:
    # Thirteen rows against one, whose runs spread as 1; what the choice of sentences adds to the mean of each.
    rng, reports = np.random.default_rng(1), 300
    figures = rng.normal(0, 1, (reports, 14, seeds)) + rng.normal(0, sentences, (reports, 14, 1))
    resampled = sentences / 2**0.5 * np.array([[-1.0, 1]])  # of the difference of two rows this has twice the variance
    wrong = 0
    for base, *others in figures:
        effects = [difference([row, base], [resampled, -resampled]) for row in others]
        wrong += bool((holm(np.array([p_value(effect, None) for effect in effects])) < LEVEL).any())
    assert wrong / reports <= 0.05


def test_single_seeds_of_one_config_are_told_apart_on_these_sentences_only(tmp_path: Path) -> None:
    for seed in range(4):  # far enough apart for their sentences alone to tell each pair
        write_run(tmp_path / str(seed), config(f"seed{seed}", seed=seed), quality=0.8 + 0.015 * seed)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    pairs = [claim(row=a.name, against=b.name, known=[row.name for row in found]) for a, b in permutations(found, 2)]
    verdicts = judge(pairs, found)
    assert {verdict.verdict for verdict in verdicts} == {SENTENCES}
    assert {verdict.p for verdict in verdicts} == {None}
    effects = [verdict.effect for verdict in verdicts if verdict.effect is not None]
    assert len(effects) == 12
    assert all(effect.low > 0 or effect.high < 0 for effect in effects)


def test_seeds_widen_the_interval(tmp_path: Path) -> None:
    for seed, quality in ((1, 0.56), (2, 0.6), (3, 0.64)):
        write_run(tmp_path / f"a,seed={seed}", config("a", seed=seed), quality=quality)
        write_run(tmp_path / f"b,seed={seed}", config("b", seed=seed), quality=0.6)
    wide = rows_of(read_folder(tmp_path))
    narrow = rows_of([run for row in wide for run in row.runs if run.config["seed"] == 2])
    widths = []
    for found in (wide, narrow):
        bootstrap(found)
        effect = one(claim(), found).effect
        assert effect is not None
        widths.append(effect.high - effect.low)
    assert widths[0] > 1.2 * widths[1]


def test_two_seeds_of_one_row_alone_give_no_verdict(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("a"), quality=0.5)
    for seed in (1, 2):
        write_run(tmp_path / f"b,seed={seed}", config("b", seed=seed), quality=0.6)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert one(claim(), found).verdict == one(claim(direction="equal", margin=90), found).verdict == SENTENCES


def test_missing_and_unfinished_rows_leave_a_claim_open_and_are_named(tmp_path: Path) -> None:
    found = rows(tmp_path, a=0.5, b=0.6)
    planned = [
        Run.read(tmp_path / f"{name},seed=4", row=f"{name},seed=4", config=config(name, seed=4)) for name in "bc"
    ]
    found = rows_of([run for row in found for run in row.runs] + planned)
    bootstrap(found)
    verdict = one(claim(), found)
    assert (verdict.verdict, verdict.effect, verdict.reason) == (UNKNOWN, None, "b is 3 done, 1 missing")
    assert one(claim(against="c"), found).reason == "c is missing"


def test_perplexities_of_other_pieces_are_not_compared(tmp_path: Path) -> None:
    for name, quality in (("a", 0.5), ("b", 0.6)):
        write_run(tmp_path / name, config(name), quality=quality)
    file = tmp_path / "b" / "translations" / "last.dev.statistics.npz"
    arrays = dict(np.load(file))
    arrays["perplexity"][0, 1] += 1
    np.savez(file, **arrays)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    verdict = one(claim(metric="perplexity"), found)
    assert verdict.effect is None
    assert "in different pieces" in verdict.reason
    assert one(claim(), found).verdict == SENTENCES
    assert list(found[1].apart) == list(found[1].p_values) == ["bleu", "ter"]


def test_rows_without_statistics_leave_a_claim_open(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("a"))
    write_run(tmp_path / "b", config("b"), statistics=False)
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert one(claim(), found).reason == "b has no statistics"


def test_what_was_expected_stands_beside_the_claims_of_smaller_twins(tmp_path: Path) -> None:
    asked, texts = claim(carries_over=False, because="there are few data."), []
    for scale in ("full", "small"):
        for name in "ab":
            write_run(tmp_path / scale / name, {**config(name), "scale": {"name": scale}})
        found = rows_of(read_folder(tmp_path / scale))
        bootstrap(found)
        texts.append(verdict_cells(one(asked, found))[0])
    assert texts == [asked.text, f"{asked.text} Expected of smaller twins: no, there are few data."]


def test_a_report_says_whether_its_claims_are_older_than_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = SimpleNamespace(runtime=SimpleNamespace(choices={"claims": "[table3,mine]"}))
    monkeypatch.setattr(report, "HydraConfig", SimpleNamespace(get=lambda: chosen))
    monkeypatch.setattr(report, "claims_hashes", lambda: {"table3": "7a", "mine": "3c", "others": "5b"})
    for place, known in enumerate(({"table3": "7a"}, {"table3": "9f"}, None)):
        write_run(tmp_path / str(place), config("a", seed=place), claims=known)
        os.utime(tmp_path / str(place) / "result.json", (10.0 - place, 10.0 - place))  # the later ones ended earlier
    runs = read_folder(tmp_path)
    told = []
    for first in range(3):
        found = rows_of(runs[: first + 1])
        bootstrap(found)
        ((_, text),) = report.claims_stamp(found, [verdict(claim(), Interval(1.0, 0.1))])
        told.append(text)
    assert told[0].startswith("table3 7a, as when the first run that is done began; mine 3c, changed since")
    assert "table3 7a, changed since the first run that is done began (then 9f)" in told[1]
    assert "does not say what they were" in told[2]


def test_claims_are_those_both_of_whose_rows_are_there() -> None:
    claims = {"x": ENTRY, "y": ENTRY | {"row": "c"}, "removed": None}
    asked = {
        names: [asked.name for asked in claims_about(list(names), claims, experiments="abc", metrics=METRICS)]
        for names in ("abc", "bc", "ab", "ac", "b")
    }
    assert asked == {"abc": ["x", "y"], "bc": ["y"], "ab": ["x"], "ac": [], "b": []}
    with pytest.raises(ValueError, match=r"claims.y.row must name one row"):
        claims_about(["a", "b"], claims, experiments=[], metrics=METRICS)


def test_the_metric_of_a_claim_is_asked_for_only_where_both_of_its_rows_are_there() -> None:
    claims = {"x": ENTRY | {"metric": "chrf"}}
    assert claims_about(["a", "c"], claims, experiments="abc", metrics=METRICS) == []
    with pytest.raises(ValueError, match=r"claims\.x\.metric must be one of bleu, perplexity, ter, got 'chrf'; add it"):
        claims_about(["a", "b"], claims, experiments="abc", metrics=METRICS)


def test_the_papers_claims_hold_in_the_papers_own_figures() -> None:
    experiments = {path.stem: path for path in (ROOT / "experiments").glob("*.yaml")}
    papers = {name: yaml.safe_load(path.read_text()).get("paper") for name, path in experiments.items()}
    found = [Row(name, [Run(Path(), name, {"paper": paper})], "last", "dev") for name, paper in papers.items()]
    for path in (ROOT / "conf" / "claims").glob("*.yaml"):
        for asked in claims_about(papers, yaml.safe_load(path.read_text()), experiments=(), metrics=METRICS):
            paper = one(asked, found).paper
            assert paper is not None
            assert verdict(asked, Interval(paper)).verdict == HOLDS, asked.name
            assert "(section " in asked.text
