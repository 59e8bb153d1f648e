"""How far the order of rows agrees with the paper's."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_runs import config, write_run
from rich.console import Console
from scipy.stats import kendalltau

from aiayn.report.agreement import (
    Comparison,
    agreements,
    ceiling,
    chance,
    compare,
    of_paper,
    of_report,
    oriented,
    resampled,
    stopped_early,
    tau_b,
)
from aiayn.report.distance import bootstrap
from aiayn.report.formats import agreements_to_terminal
from aiayn.report.rows import Row, rows_of
from aiayn.runs.run import read_folder

TINY = Path(__file__).parent / "table3_tiny.csv"  # one seed of each row at scale=tiny, as first reported


def tiny(ours: str, theirs: str, separated: float = 0.0):
    """The agreement of the tiny table with the paper."""
    with TINY.open() as file:
        lines = list(csv.DictReader(file))
    x, y = (np.array([float(line[key]) for line in lines]) for key in (f"paper_{theirs}", ours))
    x, y = (-np.log(values) if key == "perplexity" else values for values, key in ((x, theirs), (y, ours)))
    return compare([line["row"] for line in lines], x, y, base="table3_base", separated=separated)


def test_the_tiny_table_says_nothing_of_the_papers_order() -> None:
    bleu = tiny("bleu", "bleu", 0.3)
    assert round(bleu.tau, 2) == -0.16
    assert bleu.p == pytest.approx(0.36, abs=0.02)
    # With exactly 0.3 counted, which in binary fractions is at times a little less: 57 of 138 otherwise.
    assert (bleu.right, bleu.pairs) == (60, 142)
    assert (bleu.right_of_base, bleu.beside_base) == (12, 18)
    perplexity = tiny("perplexity", "perplexity")
    assert round(perplexity.tau, 2) == -0.10
    assert (perplexity.right_of_base, perplexity.beside_base) == (8, 18)
    assert "Do not believe the order of these rows" in Comparison([bleu, perplexity], "the paper").reading


def test_the_papers_two_scores_agree_as_far_as_can_be_hoped_for() -> None:
    with TINY.open() as file:
        lines = list(csv.DictReader(file))
    reference = {key: {line["row"]: float(line[f"paper_{key}"]) for line in lines} for key in ("bleu", "perplexity")}
    assert ceiling(reference, "bleu") == pytest.approx(0.69, abs=0.005)
    assert ceiling(reference, "perplexity") is None


@pytest.mark.parametrize("ties", [False, True])
def test_tau_is_that_of_scipy(ties: bool) -> None:
    random = np.random.default_rng(1)
    x, y = (random.integers(0, 5 if ties else 10**6, 23).astype(float) for _ in range(2))
    assert tau_b(x, y) == pytest.approx(kendalltau(x, y).statistic)
    assert tau_b(np.stack([x, y]), y)[1] == pytest.approx(1)
    assert chance(x, y) == pytest.approx(kendalltau(x, y).pvalue, abs=0.05)


def test_orders_by_chance_are_found_unlikely_at_the_rate_that_they_say() -> None:
    random = np.random.default_rng(2)
    p_values = [chance(random.permutation(11), np.arange(11)) for _ in range(200)]
    assert 3 <= sum(p < 0.05 for p in p_values) <= 20


def made(folder: Path, *, seeds: int = 2) -> list[Row]:
    """Seven rows whose quality falls as the paper's does."""
    for place in range(7):
        paper = {"bleu": 26 - 0.4 * place, "perplexity": 4.5 + 0.1 * place}
        for seed in range(1, seeds + 1):
            of_run = config(f"row_{place}", seed=seed, paper=paper, model__d_ff=2048 + place)
            write_run(folder / f"row_{place}_{seed}", of_run, quality=0.7 - 0.04 * place, nats=1.5 + 0.1 * place)
    rows = rows_of(read_folder(folder))
    bootstrap(rows)
    return rows


def test_rows_in_the_papers_order_agree_with_it(tmp_path: Path) -> None:
    rows = made(tmp_path)
    bleu, perplexity, across = agreements(rows, of_paper(rows), min_difference={"bleu": 0.5})
    assert (bleu.ours, bleu.theirs) == ("BLEU", "BLEU")
    assert (perplexity.ours, perplexity.theirs, across.theirs) == ("PPL", "PPL", "BLEU")
    assert bleu.tau > 0.8
    assert bleu.interval is not None
    assert bleu.interval[0] <= bleu.tau <= bleu.interval[1] <= 1
    assert bleu.p < 0.01
    assert bleu.pairs == 15  # of 21, those 0.8 apart or more
    assert perplexity.pairs == 21
    assert bleu.seeds is not None
    assert bleu.seeds > 0.8
    assert [step for step, _ in bleu.curve] == [1000 * step for step in range(1, 11)]
    assert "are ordered as the paper has them" in Comparison([bleu], "the paper", 0.7).reading


def test_without_sentences_and_seeds_there_is_no_interval_and_no_ceiling(tmp_path: Path) -> None:
    rows = made(tmp_path, seeds=1)
    for row in rows:
        row.samples.clear()
    bleu = agreements(rows, of_paper(rows), min_difference={})[0]
    assert (bleu.interval, bleu.seeds) == (None, None)


def test_the_terminal_has_a_line_for_each_score_whatever_its_width(tmp_path: Path) -> None:
    rows = made(tmp_path)
    found = Comparison(agreements(rows, of_paper(rows), min_difference={}), "the paper")
    for width in (80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(agreements_to_terminal(found, width=width))
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, printed.splitlines())) <= width
        assert f"{found.agreements[0].tau:+.2f}" in printed
        assert sum(line.startswith(("BLEU", "PPL")) for line in printed.splitlines()) == 3


def test_few_rows_or_figures_make_no_agreement(tmp_path: Path) -> None:
    rows = made(tmp_path)
    assert agreements(rows[:3], of_paper(rows[:3]), min_difference={}) == []
    assert agreements(rows, {}, min_difference={}) == []


def test_another_report_is_a_reference_as_the_paper_is(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "table.csv").write_text("row,bleu,bleu_deviation,note\na,23.5,,x\nb,,,y\n")
    assert of_report(tmp_path) == of_report(tmp_path / "report") == {"bleu": {"a": 23.5}}
    with pytest.raises(ValueError, match=r"against=.*nowhere has no report \(table.csv\); run task=report there first"):
        of_report(tmp_path / "nowhere")


def test_it_is_seen_how_early_one_could_have_stopped() -> None:
    agreement = tiny("bleu", "bleu")
    for taus, step in (([0.1, 0.5, 0.2, 0.48, 0.5], 4), ([0.5, 0.5, 0.5], 1), ([0.1, 0.5], None), ([], None)):
        curve = list(enumerate(taus, start=1))
        assert stopped_early(type(agreement)(**{**vars(agreement), "curve": curve})) == step


def test_the_best_of_several_scores_is_not_believed_for_having_been_chosen() -> None:
    x = np.arange(9.0)
    agreement = replace(compare([str(one) for one in range(9)], x, x, base="0"), p=0.03)
    chosen = [agreement, *[replace(agreement, tau=0.1, p=0.7)] * 2]
    assert "with tau +1.00, more than by chance (p 0.030)" in Comparison(chosen[:1], "the paper").reading
    assert "by no score" in (told := Comparison(chosen, "the paper").reading)
    assert "tau +1.00, p 0.09" in told


def test_an_interval_is_of_seeds_as_well_as_of_sentences(tmp_path: Path) -> None:
    rows = made(tmp_path)
    of_sentences = [np.ptp(oriented(rows, "bleu", row.samples["bleu"].mean(0))) for row in rows]
    for row in rows:
        row.samples["bleu"] = row.samples["bleu"] + np.array([[-20.0], [20.0]])  # the mean over both stays
    found = resampled(rows, "bleu")
    assert found is not None
    assert (np.ptp(found, axis=1) > np.add(of_sentences, 20)).all()


@pytest.mark.parametrize("value", ["much", "nan", "inf"])
def test_a_reference_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "table.csv").write_text(f"row,bleu,bleu_deviation\na,{value},\n")
    with pytest.raises(ValueError, match=rf"table\.csv has bleu={value} in row a; write it anew"):
        of_report(tmp_path)
