"""The command, on a model with random weights: lines in, lines out, whatever they hold."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Told, write_checkpoint

from aiayn.commands.translate import translate

pytestmark = pytest.mark.slow

SIZES = ["model.layers=1", "model.d_model=14", "model.d_ff=11", "model.heads=2", "inference.max_extra_length=3"]
LINES = [
    "one two three",
    "",
    "   ",
    "four",
    "\U0001f600 three \x00\x07 two\u2028one\u0085",
    "five one",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights; its translations end soon."""
    file = tmp_path_factory.mktemp("run") / "checkpoints" / "averaged.ckpt"
    return write_checkpoint(file, *SIZES, words=("one", "two", "three", "four", "five"))


Run = Callable[..., list[str]]


@pytest.fixture
def run(told: Told, saved: Path, tmp_path: Path) -> Run:
    """The lines that translating `lines` gives."""

    def run(*overrides: str, lines: list[str] = LINES) -> list[str]:
        source, output = tmp_path / "source.txt", tmp_path / "output.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        files = [f"checkpoint={saved}", f"input={source}", f"output={output}"]
        translate(told("task=translate", *files, "trainer=cpu", *overrides))
        return output.read_text(encoding="utf-8").split("\n")[:-1]

    return run


def test_every_line_has_its_translation_whatever_is_in_it(run: Run) -> None:
    lines = [*LINES, "two " * 10_000, "three"]
    found = run(lines=lines)
    assert len(found) == len(lines)
    assert found[1] == found[2] == ""
    alone = [run(lines=[line])[0] for line in (*LINES, "three")]
    assert found[:-2] + found[-1:] == alone


def test_the_window_changes_memory_only(run: Run) -> None:
    assert run("window=1") == run("window=3") == run()


def test_a_run_folder_means_its_averaged_checkpoint(run: Run, saved: Path) -> None:
    assert run(f"checkpoint={saved.parents[1]}") == run()


def test_json_lines_say_what_was_found(run: Run) -> None:
    found = [json.loads(line) for line in run("format=jsonl", "n_best=3")]
    assert [each["source"] for each in found] == LINES
    assert [each["translation"] for each in found] == run()
    for each in found:
        scores = [other["score"] for other in each["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert each["score"] == scores[0]
    assert {len(each["n_best"]) for each in found} == {1, 3}  # blank lines have one


def test_n_best_lists_are_written_as_moses_does(run: Run) -> None:
    lines = ["one", "", "two three"]
    found = [line.split(" ||| ") for line in run("n_best=2", lines=lines)]
    expected = [
        [str(number), each["translation"], f"logprob= {each['log_probability']:.4f}", f"{each['score']:.4f}"]
        for number, line in enumerate(run("n_best=2", "format=jsonl", lines=lines))
        for each in json.loads(line)["n_best"]
    ]
    assert found == expected
    assert [number for number, *_ in found] == ["0", "0", "1", "2", "2"]


def test_an_ensemble_of_one_model_is_that_model(run: Run, saved: Path) -> None:
    again = saved.with_name("again.ckpt")
    again.write_bytes(saved.read_bytes())
    assert run(f"checkpoint=[{saved},{again}]") == run()


def test_gzipped_input_is_read(run: Run, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "source.gz", "wt") as file:
        file.write("one two\n")
    assert run(f"input={tmp_path}/source.gz") == run(lines=["one two"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["format=xml"], "format must be text or jsonl, got xml"),
        (["window=0"], "window must be a whole number of at least 1, got 0"),
        (["window=null"], "window must be a whole number of at least 1, got None"),
        (["n_best=a"], "n_best must be a whole number of at least 1, got 'a'"),
        (["n_best=5"], r"n_best must be at most inference\.beam=4, got 5"),
        (["inference.max_extra_length=-1"], r"inference\.max_extra_length must be at least 0 and below 131072, got -1"),
        (["inference.alpha=nan"], r"inference\.alpha must be at least 0, got nan"),
        (["trainer.accelerator=gpu"], "torch sees no GPU"),
        (["input=[a]"], r"input must be the path of a file or folder, got \['a'\]"),
        (["checkpoint=[]"], "names no model"),
        (["input=/nowhere.txt"], "/nowhere.txt does not exist"),
        (["max_source_length=0"], "max_source_length must be a whole number of at least 1, got 0"),
        (["max_source_length=all"], "max_source_length must be a whole number of at least 1, got 'all'"),
    ],
)
def test_what_has_no_meaning_is_refused(run: Run, tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(*overrides)
    assert not (tmp_path / "output.txt").exists()


def test_a_line_that_is_no_text_leaves_no_half_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"one\n" * 5 + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 6, is not UTF-8"):
        run(f"input={tmp_path}/bad.txt", "window=2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "source.txt"]


def test_a_source_in_pieces_has_no_alignment(run: Run) -> None:
    found = [json.loads(line) for line in run("format=jsonl", "max_source_length=30", lines=["one", "one " * 31])]
    assert [each["alignment"] is None for each in found] == [False, True]


def test_the_run_says_how_long_a_source_may_be(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limit = "data.cleaning.max_length=7"
    file = write_checkpoint(tmp_path / "short.ckpt", *SIZES, limit, words=("one", "two", "three"))
    options = {"lines": ["one", "two " * 31]}
    found = run(f"checkpoint={file}", **options)
    assert "1 of 2 sentences have more than 7 tokens and are translated in pieces" in caplog.text
    caplog.clear()
    assert run(f"checkpoint={file}", "max_source_length=1000", **options) != found
    assert "pieces" not in caplog.text


def test_samples_are_the_same_for_a_seed_whatever_the_window(run: Run) -> None:
    sampled = ["inference=sampling", "inference.top_p=0.9", "inference.max_extra_length=3", "n_best=5"]  # of beam 4
    lines = ["one two three", "four", "five one"]
    found = run(*sampled, lines=lines)
    assert len(found) == 15
    assert found == run(*sampled, "window=1", lines=lines) != run(*sampled, "inference.seed=2", lines=lines)
    firsts = [line.split(" ||| ")[1] for line in found[::5]]
    assert run(*sampled[:3], lines=lines) == firsts
    for key, value, rule in (("top_p", 1.1, "at least 0 and at most 1"), ("temperature", -1, "at least 0")):
        with pytest.raises(ValueError, match=rf"inference\.{key} must be {rule}, got {value}"):
            run("inference=sampling", f"inference.{key}={value}")
    with pytest.raises(ValueError, match="samples are drawn with backend=torch"):
        run("inference=sampling", "backend=ctranslate2")
