import gzip
import json
from pathlib import Path

import pytest
import torch
from conftest import composed
from omegaconf import OmegaConf

from aiayn.applications.rescore import rescore
from aiayn.applications.translate import translate
from aiayn.data.tokenizer import Tokenizer
from aiayn.inference import checkpoint
from aiayn.inference.scoring import log_likelihoods

SIZES = ["model.layers=1", "model.d_model=14", "model.d_ff=11", "model.heads=2"]
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
    tokenizer = Tokenizer.train(["one two three four five"] * 3, vocab_size=29)
    config = OmegaConf.to_container(composed("data=text", *SIZES), resolve=False)
    assert isinstance(config, dict)
    config["model"] = OmegaConf.to_container(composed(*SIZES).model, resolve=True)
    torch.manual_seed(1)
    model = checkpoint.build_model(config["model"], vocab_size=tokenizer.vocab_size)
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    file = tmp_path_factory.mktemp("run") / "checkpoints" / "averaged.ckpt"
    checkpoint.write(file, {**checkpoint.contents(config, tokenizer), "state_dict": state, "global_step": 1})
    return file


def run(saved: Path, tmp_path: Path, *overrides: str, lines: list[str] = LINES) -> list[str]:
    """The lines that translating `lines` gives."""
    source, output = tmp_path / "source.txt", tmp_path / "output.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    files = [f"checkpoint={saved}", f"input={source}", f"output={output}"]
    translate(composed("task=translate", *files, "inference.max_extra_length=3", "trainer=cpu", *overrides))
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def test_every_line_has_its_translation_whatever_is_in_it(saved: Path, tmp_path: Path) -> None:
    lines = [*LINES, "two " * 10_000, "three"]
    found = run(saved, tmp_path, lines=lines)
    assert len(found) == len(lines)
    assert found[1] == found[2] == ""
    alone = [run(saved, tmp_path, lines=[line])[0] for line in (*LINES, "three")]
    assert found[:-2] + found[-1:] == alone


def test_the_window_changes_memory_only(saved: Path, tmp_path: Path) -> None:
    assert run(saved, tmp_path, "window=1") == run(saved, tmp_path, "window=3") == run(saved, tmp_path)


def test_a_run_folder_means_its_averaged_checkpoint(saved: Path, tmp_path: Path) -> None:
    assert run(saved.parents[1], tmp_path) == run(saved, tmp_path)


def test_json_lines_say_what_was_found(saved: Path, tmp_path: Path) -> None:
    found = [json.loads(line) for line in run(saved, tmp_path, "format=jsonl", "n_best=3")]
    assert [each["source"] for each in found] == LINES
    assert [each["translation"] for each in found] == run(saved, tmp_path)
    for each in found:
        scores = [other["score"] for other in each["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert each["score"] == scores[0]
    assert {len(each["n_best"]) for each in found} == {1, 3}  # blank lines have one


def test_n_best_lists_are_written_as_moses_does(saved: Path, tmp_path: Path) -> None:
    found = run(saved, tmp_path, "n_best=2", lines=["one", "", "two three"])
    assert [line.split(" ||| ")[0] for line in found] == ["0", "0", "1", "2", "2"]
    assert all(len(line.split(" ||| ")) == 3 for line in found)


def test_an_ensemble_of_one_model_is_that_model(saved: Path, tmp_path: Path) -> None:
    again = saved.with_name("again.ckpt")
    again.write_bytes(saved.read_bytes())
    assert run(saved, tmp_path, f"checkpoint=[{saved},{again}]") == run(saved, tmp_path)


def test_gzipped_input_is_read(saved: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "source.gz", "wt") as file:
        file.write("one two\n")
    assert run(saved, tmp_path, f"input={tmp_path}/source.gz") == run(saved, tmp_path, lines=["one two"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["format=xml"], "format must be text or jsonl, got xml"),
        (["window=0"], "window must be at least 1 line, got 0"),
        (["n_best=5"], r"n_best must be from 1 to inference\.beam, got n_best=5"),
        (["checkpoint=[]"], "names no checkpoint"),
        (["input=/nowhere.txt"], "/nowhere.txt does not exist"),
        (["inference.max_source_length=0"], "max_source_length must be at least 1, got 0"),
    ],
)
def test_what_has_no_meaning_is_refused(saved: Path, tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(saved, tmp_path, *overrides)
    assert not (tmp_path / "output.txt").exists()


def test_a_line_that_is_no_text_leaves_no_half_output(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"one\n" * 5 + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 6, is not UTF-8"):
        run(saved, tmp_path, f"input={tmp_path}/bad.txt", "window=2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "source.txt"]


def test_given_translations_get_scores_as_the_search_gives_them(saved: Path, tmp_path: Path) -> None:
    sources, targets = ["one two three", "", "five one"], ["four", "two", ""]
    for side, lines in (("source", sources), ("target", targets)):
        (tmp_path / f"{side}.txt").write_text("".join(f"{line}\n" for line in lines))
    files = [f"{side}={tmp_path}/{side}.txt" for side in ("source", "target")]
    given = ["task=rescore", f"checkpoint={saved}", *files, f"output={tmp_path}/scores", "trainer=cpu"]
    rescore(composed(*given))
    scores = [json.loads(line) for line in (tmp_path / "scores").read_text().splitlines()]
    loaded = checkpoint.read(saved)
    sums, tokens = log_likelihoods(loaded.model(), loaded.tokenizer, sources, targets, tokens_per_batch=100)
    assert [score["log_probability"] for score in scores] == pytest.approx(sums, rel=1e-5)
    assert [score["tokens"] for score in scores] == tokens.tolist()
    assert [score["score"] for score in scores] == pytest.approx(sums / ((5 + tokens) / 6) ** 0.6, rel=1e-5)
    (tmp_path / "target.txt").write_text("one\n")
    with pytest.raises(ValueError, match=r"target.txt ends after 1 lines"):
        rescore(composed(*given))
