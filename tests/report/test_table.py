"""The table's columns, and its CSV, Markdown and LaTeX."""

import csv
import io
import re
from pathlib import Path

import pytest
from fake_runs import SIGNATURE, config, write_run
from rich.console import Console

from aiayn.report.agreement import Comparison
from aiayn.report.distance import bootstrap
from aiayn.report.formats import latex, markdown, to_csv, to_latex, to_markdown, to_terminal
from aiayn.report.notes import notes
from aiayn.report.page import page
from aiayn.report.plots import marginals
from aiayn.report.rows import Row, rows_of
from aiayn.report.table import columns
from aiayn.runs.run import Run, read_folder

PAPER = {"perplexity": 4.92, "bleu": 25.8, "parameters": 65e6}


def read(folder: Path) -> list[Row]:
    found = rows_of(read_folder(folder))
    bootstrap(found)
    return found


def cells(rows: list[Row]) -> dict[str, list[str]]:
    return {column.name: column.cells for column in columns(rows)}


@pytest.fixture
def table3(tmp_path: Path) -> list[Row]:
    """Base with two seeds, and a row that has not run."""
    for seed in (1, 2):
        made = config("table3_base", seed=seed, paper=PAPER)
        write_run(tmp_path / f"table3_base,seed={seed}", made, quality=0.5 + seed / 100)
    write_run(tmp_path / "table3_a_h1", config("table3_a_h1", paper={"bleu": 24.9}, model__heads=1), quality=0.4)
    missing = config("table3_big", paper={"bleu": 26.4}, model__d_ff=4096, training__max_steps=300000)
    runs = [*read_folder(tmp_path), Run.read(tmp_path / "table3_big", row="table3_big", config=missing)]
    found = rows_of(runs)
    bootstrap(found)
    return found


def test_rows_of_the_paper_have_its_columns(table3: list[Row]) -> None:
    found = cells(table3)
    assert list(found) == [
        *("", "row", "state", "N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "eps_ls", "steps"),
        *("PPL", "PPL paper", "PPL - paper", "BLEU", "BLEU as in paper", "BLEU paper", "BLEU - paper", "BLEU - base"),
        *("params", "params paper", "s/step", "runs"),
    ]
    assert found["row"] == ["table3_base", "table3_a_h1", "table3_big"]
    assert found[""] == ["", "(A)", ""]
    assert found["state"] == ["done", "done", "missing"]
    assert found["h"] == ["8", "1", "8"]
    assert found["d_k"] == ["64", "512", "64"]
    assert found["steps"] == ["100K", "100K", "300K"]
    assert found["BLEU paper"] == ["25.8", "24.9", "26.4"]
    assert re.fullmatch(r"\d+\.\d\d \u00b1 \d\.\d\d", found["BLEU"][0])
    assert re.fullmatch(r"\d+\.\d\d", found["BLEU"][1])
    assert found["BLEU"][2] == found["BLEU - paper"][2] == found["BLEU - base"][2] == ""
    ours = table3[1].figure("bleu")
    assert ours is not None
    like = ours.mean + 0.7
    assert float(found["BLEU as in paper"][1]) == pytest.approx(like, abs=0.005)
    assert float(found["BLEU - paper"][1].replace("\u2212", "-")) == pytest.approx(like - 24.9, abs=0.005)
    value, low, high = (
        float(text) for text in re.findall(r"[+-][\d.]+", found["BLEU - base"][1].replace("\u2212", "-"))
    )
    assert low < value < high < 0


def test_systems_that_are_not_trained_here_stand_below_with_their_reported_scores(tmp_path: Path) -> None:
    made = config("table4", paper=PAPER) | {"report": {"others": {"Somebody (2016)": {"bleu": 24.61}}}}
    write_run(tmp_path / "table4", made)
    rows = read(tmp_path)
    found = cells(rows)
    assert found["row"] == ["table4", "Somebody (2016)"]
    assert found["BLEU paper"] == ["25.8", "24.61"]
    assert found["BLEU"][1] == found["state"][1] == found["params"][1] == ""
    assert "Somebody (2016)" in page("", rows, [], [], Comparison([], ""), [])
    assert to_latex(rows, []).count(r"\midrule") == 2
    assert "Somebody" not in to_csv(rows)


def test_where_no_run_has_the_papers_bleu_the_head_says_what_is_subtracted(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config("x", paper=PAPER), as_in_paper=False)
    rows = read(tmp_path)
    ours = rows[0].figure("bleu")
    assert ours is not None
    (apart,) = cells(rows)["sacreBLEU - paper"]
    assert float(apart.replace("\u2212", "-")) == pytest.approx(ours.mean - 25.8, abs=0.005)
    assert not {"BLEU - paper", "BLEU as in paper"} & set(cells(rows))
    assert "ours by sacreBLEU (13a)" in dict(notes(rows, ""))["BLEU paper"]


def test_a_row_one_of_whose_runs_lacks_the_papers_bleu_is_not_subtracted_from(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"x{seed}", config("x", paper=PAPER, seed=seed), as_in_paper=seed == 1)
    write_run(tmp_path / "y", config("y", paper=PAPER, model__heads=4))
    found = cells(read(tmp_path))
    assert [bool(cell) for cell in found["BLEU - paper"]] == [name == "y" for name in found["row"]]


def test_single_runs_have_a_p_too(tmp_path: Path) -> None:
    for heads, quality in ((8, 0.5), (1, 0.4)):
        write_run(tmp_path / str(-heads), config("x", model__heads=heads), quality=quality)
    rows = read(tmp_path)
    assert cells(rows)["p (Holm)"] == ["0.001", ""] if rows[0].p_values else ["", "0.001"]
    assert "two-sided" in dict(notes(rows, ""))["p (Holm)"]


def test_other_rows_have_the_settings_that_differ(tmp_path: Path) -> None:
    for heads in (1, 4):
        write_run(tmp_path / f"model.heads={heads}", config("x", model__heads=heads))
    assert list(cells(read(tmp_path)))[:3] == ["row", "state", "heads"]  # d_k and d_v follow from it


@pytest.mark.parametrize(
    ("column", "values"),
    [("kv_heads", [1, 2, 8]), ("encoder_layers", [2, 3, 6]), ("norm.dropout", [0.0, 0.1])],
)
def test_a_value_that_equals_the_one_that_it_follows_is_written_out(
    tmp_path: Path, column: str, values: list[float]
) -> None:
    part, _, leaf = column.rpartition(".")
    for value in values:
        changed = {f"model__{part}": {leaf: value}} if part else {f"model__{leaf}": value}
        write_run(tmp_path / f"{column}={value}", config("x", **changed))
    rows = read(tmp_path)
    assert cells(rows)[column] == list(map(str, values))
    assert [line[f"model.{column}"] for line in csv.DictReader(io.StringIO(to_csv(rows)))] == list(map(str, values))
    assert [panel.ticks for panel in marginals(rows).panels] == [values] * 2


def test_a_setting_that_is_the_same_in_all_rows_has_no_column(tmp_path: Path) -> None:
    for heads in (2, 4):  # of which only the former has a head of keys for each
        write_run(tmp_path / str(heads), config("x", model__heads=heads, model__kv_heads=2))
    rows = read(tmp_path)
    assert list(cells(rows))[:4] == ["row", "state", "heads", "PPL"]
    assert [panel.x_label for panel in marginals(rows).panels] == ["heads"] * 2


def test_a_class_of_ones_own_has_its_own_name_alone_unless_two_share_it(tmp_path: Path) -> None:
    for number, classes in enumerate((("ideas.near.Near", "a.Post"), ("ideas.far.Far", "b.Post"))):
        bias, norm = ({"_target_": name} for name in classes)
        made = config("x", model__bias=bias, model__norm=norm)
        write_run(tmp_path / str(number), made)
    found = cells(read(tmp_path))
    assert (found["bias"], found["norm"]) == (["Near", "Far"], ["a.Post", "b.Post"])


def test_widths_that_do_not_follow_from_heads_are_shown(tmp_path: Path) -> None:
    for d_k in (16, 64):
        write_run(tmp_path / f"model.d_k={d_k}", config("x", model__d_k=d_k))
    assert "d_k" in cells(read(tmp_path))


def test_corpora_are_told_apart_by_their_names(tmp_path: Path) -> None:
    for name, tokens, beam in (("ende", 1000, 1), ("enfr", 2000, 2)):
        made = config("x", data__name=name, data__tokens_per_batch=tokens, inference__beam=beam)
        write_run(tmp_path / name, made)
    assert list(cells(read(tmp_path)))[2:4] == ["data", "beam"]


def test_csv_has_a_line_a_row_with_full_precision(table3: list[Row]) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(table3))))
    assert [line["row"] for line in lines] == ["table3_base", "table3_a_h1", "table3_big"]
    figure = table3[0].figure("bleu")
    assert figure is not None
    assert (float(lines[0]["bleu"]), float(lines[0]["bleu_deviation"])) == (figure.mean, figure.deviation)
    assert lines[0]["paper_bleu"] == "25.8"
    assert float(lines[0]["bleu_paper"]) == pytest.approx(figure.mean + 0.7)
    assert (lines[0]["runs"], lines[2]["done"], lines[2]["state"], lines[2]["bleu"]) == ("2", "0", "missing", "")
    assert lines[1]["h"] == "1"
    apart = table3[1].apart["bleu"]
    assert [float(lines[1][f"bleu_minus_base{end}"]) for end in ("", "_low", "_high")] == [
        *(apart.value, apart.low, apart.high)
    ]


def test_costs_of_a_token_and_of_a_step_stand_beside_the_papers(tmp_path: Path) -> None:
    paper = {"bleu": 27.3, "step_seconds": 0.4}
    write_run(tmp_path / "x", config("x", paper=paper), target_tokens=11_000_000_000)
    write_run(tmp_path / "y", config("y", paper=paper, model__heads=4), status="failed")
    rows = read(tmp_path)
    assert cells(rows)["mult-adds"] == ["150", ""]  # millions: 3.3e18 FLOPs are two for each of them
    assert cells(rows)["s/step"] == ["0.0432", ""]
    assert cells(rows)["s/step paper"] == ["0.4", "0.4"]
    said = dict(notes(rows, ""))
    assert "forward and backward" in said["mult-adds"]
    assert "8 P100" in said["s/step"]
    line = next(csv.DictReader(io.StringIO(to_csv(rows))))
    assert (float(line["multiply_adds"]), float(line["step_seconds"])) == (1.5e8, 0.04321)


def test_flops_of_ours_and_of_the_paper_are_one_measure_and_the_other_has_its_name(tmp_path: Path) -> None:
    paper = {"bleu": 27.3, "flops": 3.3e18, "counted_flops": 9.5e17}
    write_run(tmp_path / "x", config("x", paper=paper), quality=0.5)
    write_run(tmp_path / "older", config("older", paper={"bleu": 27.3, "flops": 3.3e18}, model__heads=4))
    lines = {line["row"]: line for line in csv.DictReader(io.StringIO(to_csv(read(tmp_path))))}
    assert (float(lines["x"]["flops"]), float(lines["x"]["paper_flops"])) == (3.3e18, 9.5e17)
    assert float(lines["x"]["paper_seconds_x_devices_x_rate"]) == 3.3e18
    assert lines["older"]["paper_flops"] == ""


def test_notes_say_how_and_on_what_it_was_measured(table3: list[Row], tmp_path: Path) -> None:
    write_run(tmp_path / "table3_a_h4", config("table3_a_h4", model__heads=4), status="failed")
    failed = Run.read(tmp_path / "table3_a_h4", row="table3_a_h4")
    found = dict(notes([*table3, Row("table3_a_h4", [failed], "last", "dev")], "python src/run.py sweep=table3"))
    assert found["command"] == "python src/run.py sweep=table3"
    assert found["measured on"] == "dev of wmt14_ende, checkpoint: last"
    assert found["BLEU"] == SIGNATURE
    assert found["commit"] == "0123456789abcdef"
    assert found["devices"] == "1 x cpu, bf16-mixed"
    assert found["missing"] == "table3_big"
    assert found["failed"] == "table3_a_h4: the disk is full"
    assert found["BLEU as in paper"] == "tok:moses+atat"
    assert "compounds split" in found["BLEU paper"]
    assert found["BLEU - base"].startswith("from table3_base, with 95 % interval")
    assert found["BLEU - base"].endswith("; one seed: the spread of training is not in it")
    assert "p (Holm)" not in found
    assert "scale" not in found


def test_tables_name_the_steps_that_were_averaged_and_say_when_they_are_fewer(tmp_path: Path) -> None:
    for name, steps in (("few", [86, 97]), ("even", [700, 800, 900]), ("odd", [1700, 1802, 1900]), ("older", None)):
        made = config(name, training__keep_checkpoints=3) | {"report": {"checkpoint": "averaged"}}
        made["model"]["heads"] = len(name)  # other settings, another row
        write_run(tmp_path / name, made, checkpoint="averaged", **({"averaged_steps": steps} if steps else {}))
    rows = read(tmp_path)
    assert set(dict(notes(rows, ""))["measured on"].split("; ")) == {
        "dev of wmt14_ende, checkpoint: averaged, of steps 86, 97 (2 only, 3 were asked for)",
        "dev of wmt14_ende, checkpoint: averaged, of 3 steps from 700 to 900, every 100",
        "dev of wmt14_ende, checkpoint: averaged, of steps 1,700, 1,802, 1,900",
        "dev of wmt14_ende, checkpoint: averaged",
    }
    lines = {line["row"]: line["averaged_steps"] for line in csv.DictReader(io.StringIO(to_csv(rows)))}
    assert lines == {"few": "86 97", "even": "700 800 900", "odd": "1700 1802 1900", "older": ""}
    for row in rows:
        row.checkpoint = "last"  # of which nothing was averaged
    assert dict(notes(rows, ""))["measured on"] == "dev of wmt14_ende, checkpoint: last"


def test_a_run_that_is_not_done_does_not_say_on_what_the_others_were_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config("a"), checkpoint="averaged", averaged_steps=[700, 800])
    write_run(tmp_path / "b", config("b", model__heads=4), status="failed")
    rows = rows_of(read_folder(tmp_path), checkpoint="averaged")
    assert dict(notes(rows, ""))["measured on"] == "dev of wmt14_ende, checkpoint: averaged, of steps 700, 800"
    assert dict(notes(rows[1:], ""))["measured on"] == "dev of wmt14_ende, checkpoint: averaged"


def test_text_that_a_spreadsheet_would_compute_is_quoted_and_figures_are_not(table3: list[Row]) -> None:
    names = ["=HYPERLINK(0)", "-1+1", "+x"]
    for row, name in zip(table3, names, strict=True):
        row.name = name
        row.told["training.label_smoothing"] = -0.5 if name == "+x" else "@x"
    lines = list(csv.DictReader(io.StringIO(to_csv(table3))))
    assert [line["row"] for line in lines] == [f"'{name}" for name in names]
    assert [line["eps_ls"] for line in lines] == ["'@x", "'@x", "-0.5"]
    assert lines[1]["bleu_minus_base"].startswith("-")


def test_no_file_passes_an_escape_sequence_on(table3: list[Row]) -> None:
    table3[0].name = "\x1b[2Jx\x9b"
    for text in (to_csv(table3), to_markdown(table3, [("x", "\x1b")], [], Comparison([], "")), to_latex(table3, [])):
        assert not set(text) & set("\x1b\x9b")


def test_notes_warn_of_smaller_twins_and_other_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config("x", paper=PAPER, training__max_steps=500) | {"scale": {"name": "tiny"}})
    planned = config("x", paper=PAPER) | {"scale": {"name": "tiny"}}
    rows = rows_of([Run.read(tmp_path / "x", row="x", config=planned)])
    assert "BLEU paper" in cells(rows)
    assert "BLEU - paper" not in cells(rows)
    found = dict(notes(rows, ""))
    assert "smaller twins" in found["scale"]
    assert found["other settings"] == "x ran with training.max_steps=500"


def test_markdown_is_one_table_whatever_the_names(table3: list[Row]) -> None:
    table3[0].name = "a|b*c*\n<b>`_x_`"
    lines = to_markdown(table3, [("command", "a | b_c")], [], Comparison([], "")).split("\n")
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[:5]}) == 1
    assert lines[1].startswith("| :-- | :-- |")
    assert r"a\|b\*c\* &lt;b>\`\_x\_\`" in lines[2]
    assert lines[-2] == r"- **command**: a \| b_c"
    assert markdown("table3_base") == "table3_base"


def test_latex_escapes_and_has_as_many_cells_in_every_line(table3: list[Row]) -> None:
    table3[0].name = r"50%_of #1 & {\x}~^$"
    text = to_latex(table3, [("\u00b1", "of\nseeds")])
    assert "\n% $\\pm$: of seeds\n" in text
    body = [line for line in text.split("\n") if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in body}) == 1
    assert len(body) == 4
    assert r"50\%\_of \#1 \& \{\textbackslash{}x\}\textasciitilde{}\textasciicircum{}\$" in text
    assert text.count(r"\midrule") == 3  # below the heads, and before each group
    assert text.isascii()
    assert latex("a_b") == r"a\_b"
    assert latex("[1] *") == "{[}1] {*}"  # a line's end would take them for its own


def test_rows_that_are_not_there_for_one_reason_are_one_line(tmp_path: Path) -> None:
    def never_run(name: str) -> Row:
        return Row(name, [Run.read(tmp_path / name, row=name, config=config(name))], "last", "dev")

    rows = [never_run(f"row{number}") for number in range(5)]
    for row in rows[2:4]:
        write_run(row.runs[0].folder, config(row.name), status="failed")
        row.runs[0] = Run.read(row.runs[0].folder, row=row.name)
    found = [note for note in notes(rows, "") if note[0] in ("missing", "failed")]
    assert found == [("missing", "row0, row1, row4"), ("failed", "row2, row3: the disk is full")]


@pytest.mark.parametrize(
    ("stale", "says"),
    [
        (2, "row0, row1: aiayn.model, text changed since"),
        (6, "row0, row1, row2 and 3 more: aiayn.model, text changed since"),
        (7, "all 7 runs: aiayn.model, text changed since"),
    ],
)
def test_runs_that_are_stale_for_one_reason_are_one_line(stale: int, says: str, tmp_path: Path) -> None:
    for number in range(7):
        write_run(tmp_path / f"row{number}", config(f"row{number}", model__heads=2**number))
    rows = read(tmp_path)
    for row in rows:
        row.runs[0].changed = ["aiayn.model", "text"] if int(row.name[3:]) < stale else []
    assert [text for label, text in notes(rows, "") if label == "stale"] == [says]


def test_runs_that_ended_early_or_otherwise_than_planned_are_one_line_for_each_way(tmp_path: Path) -> None:
    rows = []
    for number, (steps, stopped) in enumerate([(500, None), (500, None), (700, "fell behind"), (700, "fell behind")]):
        made = config(f"row{number}", training__max_steps=steps)
        write_run(tmp_path / str(number), made, **({"stopped": stopped} if stopped else {}))
        planned = made if stopped else config(f"row{number}")
        rows += rows_of([Run.read(tmp_path / str(number), row=str(number), config=planned)])
    assert [note for note in notes(rows, "") if note[0] in ("other settings", "stopped early")] == [
        ("other settings", "row0, row1 ran with training.max_steps=500"),
        ("stopped early", "row2, row3, at step 700: fell behind"),
    ]


def test_a_narrow_terminal_goes_without_the_settings(table3: list[Row]) -> None:
    def printed(width: int) -> str:
        console = Console(width=width, file=io.StringIO())
        console.print(to_terminal(table3, width=width))
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert "P_drop" in printed(220)
    assert "left out" not in printed(220)
    for width in (80, 100):
        narrow = printed(width)
        assert "P_drop" not in narrow
        shown = to_terminal(table3, width=width).columns
        assert f"columns left out: {len(columns(table3)) - len(shown)}; table.md has all" in " ".join(narrow.split())
        assert max(map(len, narrow.splitlines())) <= width
        assert all(f"{name} " in narrow for name in ("table3_base", "table3_a_h1", "missing"))
        assert re.search(r"\[\S\d\d?\.\d\d, \S\d\d?\.\d\d\]", narrow)  # in one piece
