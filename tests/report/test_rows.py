"""Runs to rows: seeds together, names, the paper's order, states, figures and p-values."""

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from fake_runs import METRICS, config, sentences, write_run
from omegaconf import OmegaConf

from aiayn.evaluation.significance import holm, p_value, resampled_sums
from aiayn.report.distance import bootstrap
from aiayn.report.notes import differences, notes
from aiayn.report.rows import Row, base_of, rows_of
from aiayn.report.statistics import read_statistics
from aiayn.runs.run import Run, read_folder, read_rows


def test_runs_that_differ_in_their_seed_are_one_row(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / f"x,seed={seed}", config("x", seed=seed))
        write_run(tmp_path / f"x,model.heads=4,seed={seed}", config("x", seed=seed, model__heads=4))
    first, second = rows_of(read_folder(tmp_path))
    assert (first.name, second.name) == ("heads=4", "heads=8")
    assert [len(first.runs), len(second.runs)] == [3, 3]
    values = [
        json.loads((run.folder / "result.json").read_text())["scores"]["last"]["dev"]["bleu"] for run in first.runs
    ]
    figure = first.figure("bleu")
    assert figure is not None
    assert figure.mean == pytest.approx(np.mean([value["value"] for value in values]))
    assert figure.deviation == pytest.approx(np.std([value["value"] for value in values], ddof=1))
    assert figure.runs == 3


def test_what_never_changes_a_figure_makes_no_row_and_a_repeated_seed_is_no_second_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("x", seed=1, data__tokens_per_device=8192))
    write_run(tmp_path / "b", config("x", seed=2, data__tokens_per_device=1024))
    write_run(tmp_path / "c", config("x", seed=2))
    rows = rows_of(read_folder(tmp_path))
    assert [[run.row for run in row.runs] for row in rows] == [["a", "b"], ["c"]]


def test_rows_are_named_after_their_experiments_where_those_differ(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_run(tmp_path / name / "2017-06-12", config(name))
    assert [row.name for row in rows_of(read_folder(tmp_path))] == ["x", "y"]


def test_rows_of_table_3_are_in_the_papers_order(tmp_path: Path) -> None:
    changed = {
        "table3_base": {},
        "table3_a_h1": {"model__heads": 1},
        "table3_a_h4": {"model__heads": 4},
        "table3_a_h16": {"model__heads": 16},
        "table3_b_dk16": {"model__d_k": 16, "model__d_v": 64},
        "table3_c_n2": {"model__layers": 2},
        "table3_c_n8": {"model__layers": 8},
        "table3_c_d256": {"model__d_model": 256},
        "table3_c_d1024": {"model__d_model": 1024},
        "table3_c_ff1024": {"model__d_ff": 1024},
        "table3_d_drop0": {"model__dropout": 0.0},
        "table3_d_ls0": {"training__label_smoothing": 0.0},
        "table3_e_learned": {"model__position": "learned"},
        "table3_big": {"model__d_model": 1024, "model__d_ff": 4096},
    }
    for name, values in changed.items():
        write_run(tmp_path / name, config(name, **values))
    rows = rows_of(read_folder(tmp_path))
    assert [row.name for row in rows] == list(changed)
    assert [row.group for row in rows] == ["base", *"AAABCCCCCDDE", "big"]
    assert base_of(rows).name == "table3_base"


def test_unfinished_runs_are_named_and_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "x,seed=1", config("x", seed=1))
    scored = json.loads((tmp_path / "x,seed=1" / "result.json").read_text())["scores"]  # of an earlier end, say
    write_run(tmp_path / "x,seed=2", config("x", seed=2), status="failed", scores=scored)
    write_run(tmp_path / "x,seed=3", config("x", seed=3), status="running")
    runs = [
        Run.read(tmp_path / f"x,seed={seed}", row=f"x,seed={seed}", config=config("x", seed=seed))
        for seed in (1, 2, 3, 4)
    ]
    (row,) = rows_of(runs)
    assert row.state == "1 done, 1 failed, 1 stopped, 1 missing"
    figure = row.figure("bleu")
    assert figure is not None
    assert figure.deviation is None


def test_a_done_run_without_the_asked_scores_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config("x"))
    (row,) = rows_of(read_folder(tmp_path), checkpoint="averaged")
    assert row.state == "done, without scores of averaged, dev"


def test_which_scores_count_is_asked_for_or_said_by_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config("x") | {"report": {"checkpoint": "averaged", "split": "test"}})
    (row,) = rows_of(read_folder(tmp_path))
    assert (row.checkpoint, row.split) == ("averaged", "test")
    (row,) = rows_of(read_folder(tmp_path), checkpoint="best", split="dev")
    assert (row.checkpoint, row.split) == ("best", "dev")


def test_an_evaluation_has_one_checkpoint_and_one_split_and_those_count(tmp_path: Path) -> None:
    for beam in (1, 4):
        made = config("x", inference__beam=beam) | {"checkpoint": "step_000100.ckpt"}
        folder = write_run(
            tmp_path / f"beam{beam}", made, checkpoint="step_000100", split="test", quality=0.5 + beam / 50
        )
        (folder / "result.json").rename(folder / "evaluation.json")
    rows = rows_of(read_folder(tmp_path))
    bootstrap(rows)
    assert [row.state for row in rows] == ["done", "done"]
    assert [row.name for row in rows] == ["beam=1", "beam=4"]
    assert rows[1].p_values["bleu"] < 0.05
    assert dict(notes(rows, ""))["measured on"] == "test of wmt14_ende, checkpoint: step_000100"


def test_settings_that_are_not_the_planned_ones_show(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", config("x", training__max_steps=10))
    assert differences(Run.read(folder, row="x", config=config("x"))) == ["training.max_steps=10"]
    assert differences(Run.read(folder, row="x", config=config("x", training__max_steps=10))) == []
    fewer = write_run(tmp_path / "y", config("x", model__heads=4, model__kv_heads=2))
    planned = config("x", model__heads=2, model__kv_heads=2, model__d_k=128, model__d_v=128)
    assert differences(Run.read(fewer, row="x", config=planned)) == ["model.heads=4"]


def test_an_evaluation_of_another_checkpoint_is_not_done(tmp_path: Path) -> None:
    made = config("x") | {"checkpoint": str(tmp_path / "old.ckpt")}
    folder = write_run(tmp_path / "x", made, checkpoint="old")
    (folder / "result.json").rename(folder / "evaluation.json")

    def row(checkpoint: Path, **changed: int) -> Row:
        planned = config("x", model__layers=1, **changed) | {"checkpoint": str(checkpoint)}  # it has its own layers
        return rows_of([Run.read(folder, row="x", config=planned)])[0]

    assert row(tmp_path / "old.ckpt").state == "done"
    assert differences(row(tmp_path / "old.ckpt").runs[0]) == []
    assert differences(row(tmp_path / "old.ckpt", inference__beam=9).runs[0]) == ["inference.beam=4"]
    other = row(tmp_path / "new.ckpt")
    assert (other.state, other.figure("bleu")) == ("of another checkpoint", None)
    assert dict(notes([other], ""))["other settings"] == f"x ran with checkpoint={tmp_path / 'old.ckpt'}"


def test_a_part_that_repeats_a_setting_is_left_out(tmp_path: Path) -> None:
    attention = {"_target_": "aiayn.model.attention.multi_head.MultiHeadAttention", "heads": 8, "window": 3}
    write_run(tmp_path / "x", config("x", model__attention=attention))
    (row,) = rows_of(read_folder(tmp_path))
    assert "model.attention.heads" not in row.settings
    assert row.settings["model.attention.window"] == 3
    assert row.settings["model.heads"] == 8


def test_p_values_are_those_of_the_paired_bootstrap(tmp_path: Path) -> None:
    write_run(tmp_path / "a_base", config("a_base"))
    write_run(tmp_path / "b", config("b"), quality=0.61)
    base, other = rows_of(read_folder(tmp_path))
    bootstrap([base, other])
    files = [tmp_path / name / "translations" / "last.dev.statistics.npz" for name in ("a_base", "b")]
    arrays, bleu = [np.load(file)["bleu"] for file in files], METRICS["bleu"].value
    one, two = bleu(resampled_sums(arrays))
    difference = bleu(arrays[1].sum(0)) - bleu(arrays[0].sum(0))
    assert other.p_values["bleu"] == p_value(float(difference), two - one)
    assert not base.p_values
    assert other.apart["bleu"].value == pytest.approx(difference)
    write_run(tmp_path / "b2", config("b", seed=2), quality=0.61)
    base, other = rows_of(read_folder(tmp_path))
    bootstrap([base, other])
    assert list(other.apart) == ["bleu", "perplexity", "ter"]
    assert not other.p_values  # it knows nothing of seeds


def test_p_values_of_rows_with_several_seeds_are_students_and_corrected_for_their_number(tmp_path: Path) -> None:
    for name, quality in (("a_base", 0.6), ("b", 0.62), ("c", 0.64), ("d", 0.6)):
        for seed in (1, 2) if name != "d" else (1,):
            write_run(tmp_path / f"{name}{seed}", config(name, seed=seed), quality=quality + seed / 200)
    rows = rows_of(read_folder(tmp_path))
    bootstrap(rows)
    alone = np.array([row.apart["bleu"].p for row in rows[1:3]])
    np.testing.assert_allclose([row.p_values["bleu"] for row in rows[1:3]], holm(alone))
    assert min(holm(alone)) > min(alone)
    assert "bleu" not in rows[3].p_values
    said = dict(notes(rows, ""))
    assert said["p (Holm)"] == "of BLEU against base, two-sided, corrected for 2 rows (Holm)"
    assert "and seeds (Welch's t); one seed: the spread of training" in said["BLEU - base"]


@pytest.mark.parametrize("spoilt", [None, "another seed", "other data"])
def test_rows_that_share_five_seeds_and_their_data_are_compared_in_pairs(tmp_path: Path, spoilt: str | None) -> None:
    for name in ("base", "z"):
        for seed in range(1, 6):
            given = 9 if (spoilt, name, seed) == ("another seed", "z", 5) else seed
            made = config(name, seed=given)
            made["data"]["tokens_per_batch"] += (spoilt, name) == ("other data", "z")
            folder = tmp_path / f"{name}{seed if name == 'base' else 9 - seed}"  # read in another order
            write_run(folder, made, quality=0.4 + 0.05 * seed)
    base, other = rows_of(read_folder(tmp_path))
    bootstrap([base, other])
    assert base.same_seeds(other) == (spoilt is None)
    assert (other.apart["bleu"].half < 3) == (spoilt is None)  # the seeds are 5 to 20 BLEU apart, in both rows alike
    assert ("in pairs" in dict(notes([base, other], ""))["BLEU - base"]) == (spoilt is None)


@pytest.mark.parametrize(
    "spoilt", ["missing", "damaged", "wrong shape", "not finite", "other sentences", "fewer sentences"]
)
def test_rows_that_cannot_be_compared_have_no_p_value(tmp_path: Path, spoilt: str) -> None:
    write_run(tmp_path / "a_base", config("a_base"))
    write_run(tmp_path / "b", config("b"))
    file = tmp_path / "b" / "translations" / "last.dev.statistics.npz"
    arrays = dict(np.load(file))
    if spoilt == "missing":
        file.unlink()
    elif spoilt == "damaged":
        file.write_bytes(file.read_bytes()[:100])
    elif spoilt == "wrong shape":
        np.savez(file, **{**arrays, "bleu": arrays["bleu"][:, 0]})
    elif spoilt == "not finite":
        np.savez(file, **{**arrays, "bleu": arrays["bleu"] * np.nan})
    elif spoilt == "other sentences":
        np.savez(file, **{key: array[::-1] for key, array in arrays.items()})
    else:
        np.savez(file, **sentences(0.6, nats=1.6, seed=1, count=50))
    rows = rows_of(read_folder(tmp_path))
    bootstrap(rows)
    spared = {"perplexity", "ter"} if spoilt in ("wrong shape", "not finite") else set()  # it was BLEU's alone
    assert set(rows[1].p_values) == set(rows[1].apart) == spared
    assert rows[1].figure("bleu") is not None


@pytest.mark.parametrize("parameters", [float("nan"), float("inf"), True, "many"])
def test_a_figure_that_is_none_is_left_out_of_the_mean(tmp_path: Path, parameters: object) -> None:
    for seed in (1, 2):
        folder = write_run(tmp_path / str(seed), config("x", seed=seed))
        if seed == 2:
            file = folder / "result.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "parameters": parameters}))
    (row,) = rows_of(read_folder(tmp_path))
    figure = row.figure("parameters")
    assert figure is not None
    assert (figure.mean, figure.runs) == (63_000_000, 1)


def test_a_mean_over_fewer_runs_than_are_done_is_said(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / str(seed), config("x", seed=seed), checkpoint="last" if seed < 3 else "averaged")
    (row,) = rows_of(read_folder(tmp_path))
    assert row.state == "2 done, 1 without scores"


def test_a_damaged_run_does_not_keep_the_others_from_being_read(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", config("x"))
    for name, metrics in (("a", "no,column\n1,2\n"), ("b", "step,dev/bleu\nx,1\n3,"), ("c", "")):
        folder = write_run(tmp_path / name, config(name))
        (folder / "metrics" / "version_0" / "metrics.csv").write_text(metrics)
        for other in ("version_x", "version_0.bak"):
            (folder / "metrics" / other).mkdir()
            (folder / "metrics" / other / "metrics.csv").write_text("step,dev/bleu\n1,2\n")
    (tmp_path / "a" / "result.json").write_text('{"config": [1, 2], "status": "done"}')
    runs = {run.row: run for run in read_folder(tmp_path)}
    assert [dict(runs[name].metrics) for name in ("a", "b", "c")] == [{}, {}, {}]
    assert (runs["a"].state, runs["whole"].state, runs["whole"].folder) == ("missing", "done", whole)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"config": {"paper": 3}}, "paper must be of the type dict[str, float | None], got 3"),
        ({"config": {"data": [1]}}, "data must hold keys and values, got list"),
        ({"config": {"name": "${oc.env:HOME}"}}, "is an interpolation"),
        ({"scores": 5}, "its scores must be of the type dict"),
        ({"steps": "x"}, "its steps must be of the type int"),
    ],
)
def test_a_result_of_another_type_counts_as_none_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: dict, words: str
) -> None:
    folder = write_run(tmp_path / "a", config("a"))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, **changed}))
    (run,) = read_folder(tmp_path)
    assert (run.state, run.config) == ("missing", {})
    assert f"{folder / 'result.json'} is damaged and left out" in caplog.text
    assert words in caplog.text


@pytest.mark.parametrize("spoilt", ["10**11 rows", "10**30 rows", "an array", "no references", "NaN", "empty"])
def test_statistics_of_anything_are_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoilt: str
) -> None:
    folder = write_run(tmp_path / "a", config("a"))
    file = folder / "translations" / "last.dev.statistics.npz"
    if spoilt == "no references":
        np.savez(file, bleu=np.zeros((200, 10)))
    elif spoilt == "NaN":
        np.savez(file, references=np.full(200, np.nan), bleu=np.zeros((200, 10)))
    elif spoilt == "an array":
        with file.open("wb") as open_file:
            np.save(open_file, np.zeros((200, 12)))
    elif spoilt == "empty":
        file.write_bytes(b"")
    else:
        count = 10 ** int(spoilt[4:6])
        with ZipFile(file, "w") as archive, archive.open("references.npy", "w") as open_file:
            header = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(open_file, header)
    (row,) = rows_of(read_folder(tmp_path))
    assert row.statistics is None
    assert f"{file} is damaged, so there are no intervals" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        np.full((200, 2), "abc"),
        np.full((200, 2), None),
        np.full((200, 2), np.nan),
        np.ones(200),
        np.ones((199, 2)),
        np.array(3),
    ],
    ids=["text", "objects", "NaN", "no columns", "other rows", "a number"],
)
def test_wrong_counts_of_one_metric_leave_the_others_their_intervals(
    wrong: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a_base", "b"):
        file = write_run(tmp_path / name, config(name)) / "translations" / "last.dev.statistics.npz"
        np.savez(file, **{**np.load(file), "ter": wrong})
    found = rows_of(read_folder(tmp_path))
    bootstrap(found)
    assert list(found[1].apart) == ["bleu", "perplexity"]
    assert f"{file} has no usable counts of ter, so it has no intervals: " in caplog.text


def test_counts_may_be_truth_values(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, references=np.arange(3), right=np.array([[True], [False], [True]]))
    assert read_statistics(file)["right"].sum(0).tolist() == [2]


def test_a_row_that_cannot_be_resolved_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", config("x"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "console.log").write_text("error: model.heads must divide model.d_model\n")
    rows = [
        OmegaConf.create({**config("x"), "run_dir": str(tmp_path / "whole")}),
        OmegaConf.create({"model": {"d_k": "${model.no_such_key}"}, "run_dir": str(tmp_path / "bad")}),
    ]
    whole, bad = read_rows(rows)
    assert (whole.state, bad.state, bad.error) == ("done", "failed", "model.heads must divide model.d_model")
    assert [row.state for row in rows_of([whole, bad])] == ["done", "failed"]
