"""Scoring files from the command line."""

import gzip
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, CommandLine, composed

from aiayn.commands.score import score

HYPOTHESES = "the cat sat on the mat\na well-known horse ran fast\n\n"
REFERENCES = "the cat sat on a mat\na well-known horse ran slowly\nnothing\n"
Files = dict[str, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Line-aligned files of three lines, the last of which is blank in the hypotheses; and some that do not fit."""
    texts = {"hypotheses": HYPOTHESES, "references": REFERENCES, "other": HYPOTHESES, "short": "a\nb\n", "empty": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with gzip.open(tmp_path / "zipped.gz", "wt") as file:
        file.write(REFERENCES)
    return {path.name: path for path in tmp_path.iterdir()}


def scored(files: Files, *overrides: str, references: str = "references") -> None:
    score(composed("task=score", f"hypotheses={files['hypotheses']}", f"references={references}", *overrides))


def test_every_metric_is_a_line_with_its_signature(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored(files, "language=en", f"output={tmp_path}/new/scores.json", references=str(files["references"]))
    lines = capsys.readouterr().out.splitlines()
    content = json.loads((tmp_path / "new" / "scores.json").read_text())
    assert (content["sentences"], content["language"]) == (3, "en")
    assert (content["hypotheses"], content["references"]) == (str(files["hypotheses"]), [str(files["references"])])
    assert sorted(content["scores"]) == sorted({*composed().metrics} - {"perplexity"})
    assert list(content["scores"])[-1] == "ter"
    found = content["scores"].values()
    assert lines == [f"{one['name']} {one['value']:.2f} ({one['signature']})" for one in found]
    assert len(set(lines)) == len(lines) == 8


def test_the_metrics_and_their_options_are_config(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["metrics=[chrf,bleu_paper]", "metrics.bleu_paper.ascii_punctuation=true", "language=de"]
    scored(files, *chosen, references=str(files["zipped.gz"]))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("chrF2 ")
    assert "tok:ascii+moses-de" in second


def test_several_references_are_several_files(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    scored(files, "metrics=bleu", references=f"[{files['references']},{files['other']}]")
    line = capsys.readouterr().out
    assert line.startswith("BLEU 100.00 (nrefs:2|")  # `other` is the hypotheses themselves


@pytest.mark.parametrize(
    ("references", "words"),
    [
        ("{short}", "got 3 lines in {hypotheses} and 2 in {short}"),
        ("[{references},{short}]", "got 3 lines in {hypotheses} and 2 in {short}"),
        ("{empty}", "got 3 lines in {hypotheses} and 0 in {empty}"),
        ("/nowhere.de", "/nowhere.de does not exist"),
        ("[]", r"references=\[\] names no file"),
    ],
)
def test_files_that_do_not_fit_are_refused(files: Files, tmp_path: Path, references: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.format(**files)):
        scored(files, f"output={tmp_path}/new.json", "language=en", references=references.format(**files))
    assert not (tmp_path / "new.json").exists()


def test_empty_files_are_refused(files: Files) -> None:
    empty = files | {"hypotheses": files["empty"]}
    with pytest.raises(ValueError, match=f"hypotheses={files['empty']} is empty"):
        scored(empty, references=str(files["empty"]))


def test_a_metric_that_lacks_something_says_so_before_the_others_have_worked(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr("aiayn.evaluation.metrics.ter.Ter.counts", seen.append)
    with pytest.raises(ValueError, match="language is not set"):
        scored(files, "metrics=[ter,bleu_paper]", references=str(files["references"]))
    assert seen == []


def test_text_that_a_metric_refuses_writes_no_scores(files: Files, tmp_path: Path) -> None:
    files["hypotheses"].write_text(HYPOTHESES.replace("well-known", "well @-@ known"))
    with pytest.raises(ValueError, match="line 2 of the hypotheses is split already"):
        scored(files, "language=en", f"output={tmp_path}/new.json", references=str(files["references"]))
    assert not (tmp_path / "new.json").exists()


def test_no_score_waits_for_ter(files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(shown, "flush", lambda: flushed.append(shown.getvalue()))
    flushed: list[str] = []

    def endless(*_: object) -> None:
        assert [line.split()[0] for line in flushed[-1].splitlines()] == ["BLEU", "chrF2"]
        raise KeyboardInterrupt

    monkeypatch.setattr("aiayn.evaluation.metrics.ter.Ter.counts", endless)
    with pytest.raises(KeyboardInterrupt):
        scored(files, "metrics=[ter,bleu,chrf]", references=str(files["references"]))


def test_chinese_is_scored_by_what_can_cut_it(
    files: Files, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    files["hypotheses"].write_text("\u4ed6\u6628\u5929\u4e70\u4e86\u4e24\u672c\u65b0\u4e66\n")
    files["references"].write_text("\u4ed6\u6628\u5929\u4e70\u4e86\u4e09\u672c\u65b0\u4e66\n")
    scored(files, "language=zh", references=str(files["references"]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["BLEU", "lower-cased", "chrF2", "exact", "TER"]
    assert not [line for line in lines if " 0.00 " in line and "exact" not in line]
    left_out = [record.getMessage().split(":")[0] for record in caplog.records]
    assert left_out == [f"bleu_{name} is left out" for name in ("tokenized_lowercase", "tokenized", "paper")]
    with pytest.raises(ValueError, match="Moses does not cut language=zh"):
        scored(files, "language=zh", "metrics=bleu_paper", references=str(files["references"]))
    with pytest.raises(ValueError, match=r"none of metrics=\[bleu_paper,bleu_tokenized\] can score language=zh"):
        scored(files, "language=zh", "metrics=[bleu_paper,bleu_tokenized]", references=str(files["references"]))


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        ("\u2581the \u2581c at", "SentencePiece's pieces"),
        ("the c@@ at", "pieces of BPE"),
        ("the c@@", "pieces of BPE"),
        ("the c ##at", "pieces of WordPiece"),
        ("a &quot;cat&#39;s", "text escaped for HTML"),
        ("mail me@@home & ## 3 < 5", ""),
    ],
)
def test_text_that_is_not_plain_is_warned_of(
    files: Files, caplog: pytest.LogCaptureFixture, marked: str, words: str
) -> None:
    files["hypotheses"].write_text(HYPOTHESES.replace("the cat", marked))
    scored(files, "metrics=chrf", references=str(files["references"]))
    said = [record.getMessage() for record in caplog.records]
    expected = [f"{files['hypotheses']}: 1 of 3 lines look like {words}, and"] if words else []
    assert [line.partition(" scores are")[0] for line in said] == expected


def test_the_command_leaves_nothing_and_explains_a_mistake(
    aiayn: CommandLine, files: Files, outputs: Path, tmp_path: Path
) -> None:
    before = sorted(outputs.iterdir()), sorted(tmp_path.iterdir())
    command = ["task=score", f"hypotheses={files['hypotheses']}", f"references={files['references']}"]
    assert aiayn(*command, "metrics=[bleu,chrf]", small=False).stdout.count("version:") == 2
    wrong = aiayn(*command, "metrics=[bleu,chfr]", small=False, code=1)
    assert wrong.stderr.splitlines() == ["error: there is no metrics=chfr; did you mean chrf?"]
    assert (sorted(outputs.iterdir()), sorted(tmp_path.iterdir())) == before


def test_scoring_loads_no_torch(files: Files) -> None:
    code = f"""
import runpy, sys
sys.argv = ["run.py", "task=score", "language=en", "hypotheses={files["hypotheses"]}", "references={files["other"]}"]
runpy.run_path({str(ROOT / "src" / "run.py")!r}, run_name="__main__")
print("torch" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert process.stdout.splitlines()[-1] == "False", process.stderr


def test_a_reader_that_leaves_early_is_no_error(files: Files) -> None:
    names = [f"hypotheses={files['hypotheses']}", f"references={files['references']}", "metrics=[bleu]"]
    command = [sys.executable, str(ROOT / "src" / "run.py"), "task=score", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE
