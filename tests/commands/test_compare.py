"""task=compare on folders as runs and evaluations leave them."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, CommandLine, composed
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from sacrebleu.metrics import BLEU

from aiayn.commands import compare as task
from aiayn.commands.compare import buckets, compare, misfit
from aiayn.evaluation.comparison import Bucket, differences
from aiayn.evaluation.metric import Score

SOURCES = ["the cat sat on a mat", "a dog", "it | ran over the old bridge", "the dog sat there again", "no cat"]
REFERENCES = ["die Katze lag auf einer Matte", "ein Hund", "er lief | \u00fcber die alte", "der Hund lag da", "kein"]
ONE = ["die Katze lag auf einer Matte", "ein Hund", "[b]er[/b] lief | \u00fcber eine alte", "die Hund sitzt", "keine"]
OTHER = ["die Katze sitzt auf der Matte", "ein Hund", "er lief | \u00fcber die alte", "der Hund lag", "keine"]
TRAINING = ["die Katze und der Hund", "die Hund da", "\u00fcber die die die die"]


@cache
def base(*groups: str) -> DictConfig:
    """The composed config; composing takes most of a test's time."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=["task=compare", "a=x", "b=y", *groups], return_hydra_config=True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the task with values, and with choices of groups, and give what it prints."""
    monkeypatch.setattr(task, "differences", partial(differences, trials=53))  # 10,000 take seconds

    def run(*values: str, groups: Sequence[str] = ()) -> str:
        cfg: Any = OmegaConf.merge(base(*groups), OmegaConf.from_dotlist(list(values)))
        monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.masked_copy(cfg, "hydra"))
        compare(cfg)
        return capsys.readouterr().out

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder of a finished run, or of an evaluation, on data of its own."""

    def write(
        name: str,
        translations: dict[str, list[str]],
        *,
        references: list[str] = REFERENCES,
        result: str = "result.json",
        data: dict[str, Any] | None = None,
        tokenize: str = "13a",
        **changed: Any,
    ) -> Path:
        folder = tmp_path / name
        (folder / "translations").mkdir(parents=True)
        texts = {"test.en": SOURCES, "test.de": references, "train.en": TRAINING, "train.de": TRAINING}
        for file, lines in texts.items():
            (folder / file).write_text("".join(f"{line}\n" for line in lines))
        files = {
            split: {
                side: str(folder / f"{split}.{language}") for side, language in (("source", "en"), ("target", "de"))
            }
            for split in ("train", "test")
        }
        corpus = {"_target_": "aiayn.data.corpora.text.TextFiles", **files}
        scores: dict[str, Any] = {}
        for key, lines in translations.items():
            checkpoint, split = key.split(".")
            (folder / "translations" / f"{key}.txt").write_text("".join(f"{line}\n" for line in lines))
            metric = BLEU(tokenize=tokenize)
            value = metric.corpus_score(lines, [references]).score
            bleu = {"value": value, "signature": str(metric.get_signature())}
            scores[checkpoint] = {"step": 7, split: {"bleu": bleu}}
        config = {
            "data": {"name": "small", "corpus": corpus, **(data or {})},
            "metrics": {"bleu": {"tokenize": tokenize}},
        }
        content = {"status": "done", "config": config, "scores": scores, **changed}
        (folder / result).write_text(json.dumps(content))
        return folder

    return write


def table(text: str, title: str) -> list[list[str]]:
    """Cells of the lines of a table of a Markdown file, without its head."""
    lines = text.partition(f"## {title}\n\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_what_is_compared_is_kept_also_when_it_cannot_be_printed(said, write, tmp_path: Path, monkeypatch) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": OTHER})
    monkeypatch.setattr(sys.stdout, "write", lambda text: os.write(os.open("/dev/full", os.O_WRONLY), b"."))
    with pytest.raises(OSError, match="No space left"):
        said(f"a={a}", f"b={b}", f"output={tmp_path}/both.md")
    assert "## Scores" in (tmp_path / "both.md").read_text()


def test_two_runs_are_compared_on_the_terminal_and_in_markdown(said, write, tmp_path: Path) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": OTHER})
    printed = said(f"a={a}", f"b={b}", f"output={tmp_path}/new/both.md", "examples=2")
    text = (tmp_path / "new" / "both.md").read_text()
    for shown in (printed, text):
        assert f"{a}, checkpoint averaged" in shown
        assert "test of small, 5 sentences" in shown
        assert "of sentences alone" in shown
        assert "all training sentences of small" in shown
    assert "[b]er[/b] lief | \u00fcber eine alte" in printed  # text is no markup
    assert r"\[b\]er\[/b\] lief \| " in text
    scores = {line[0]: line[1:] for line in table(text, "Scores")}
    assert list(scores) == ["BLEU", "chrF2", "TER"]
    assert scores["BLEU"][:2] == [f"{BLEU().corpus_score(system, [REFERENCES]).score:.2f}" for system in (ONE, OTHER)]
    assert "\\|bs:1000\\|ar:53\\|seed:12345" in text
    assert table(text, "Sentence by sentence") == [["1", "2", "2", "2"]]
    assert [line[3] for line in table(text, "Where a is better by most")] == [  # and in no other sentence
        SOURCES[0],
        REFERENCES[0],
        ONE[0],
        OTHER[0],
    ]
    assert [line[0] for line in table(text, "Where b is better by most")] == ["4", "", "", "", "3", "", "", ""]
    assert [line[:2] for line in table(text, "BLEU by the source's length")] == [["0 to 5", "3"], ["6 to 10", "2"]]
    words = {line[0]: line[1:4] for line in table(text, "Words of the references that the translations have, %")}
    assert words["6 to 20"] == ["2", "50.00", "100.00"]  # die: both have the first one, only b the second
    assert sum(int(line[0]) for line in words.values()) == 18


def test_another_score_is_seen_whatever_its_scale() -> None:
    for before, value in ((0.9, 0.904), (27.3, 27.31), (0.0, 0.001)):
        assert "in the folder's result" in misfit(Score("F1", value, ""), before)
    for before, value in ((0.9, 0.90001), (27.3, 27.3 + 1e-9), (0.0, 0.0), (None, 5.0)):
        assert misfit(Score("F1", value, ""), before) == ""


def test_a_score_that_is_a_share_has_four_decimals() -> None:
    columns = buckets("words", "sentences", [Bucket("0 to 5", 3, (0.9041, 0.9)), Bucket("6 to 10", 2, (1.0, 0.5))])
    assert [column.cells for column in columns[2:]] == [
        ["0.9041", "1.0000"],
        ["0.9000", "0.5000"],
        ["+0.0041", "+0.5000"],
    ]


def test_bleu_is_counted_as_in_the_folders(said, write, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chinese = ["\u4ed6\u4e70\u4e86\u4e09\u672c\u65b0\u4e66"] * 5
    one, other = (["\u4ed6\u4e70\u4e86\u4e24\u672c\u65b0\u4e66", *chinese[i:]] for i in (1, 2))
    other = [other[0], *other]
    options: Any = {"references": chinese, "data": {"target_language": "zh"}}
    a, b = (
        write(name, {"averaged.test": lines}, tokenize="zh", **options) for name, lines in (("a", one), ("b", other))
    )
    said(f"a={a}", f"b={b}", f"output={tmp_path}/both.md")
    scores = {line[0]: line[1:] for line in table((tmp_path / "both.md").read_text(), "Scores")}
    expected = [BLEU(tokenize="zh").corpus_score(system, [chinese]).score for system in (one, other)]
    assert scores["BLEU"][:2] == [f"{value:.2f}" for value in expected]
    assert "tok:zh" in scores["BLEU"][-1]
    assert "asian:yes" in scores["TER"][-1]
    said(f"a={a}", f"b={write('c', {'averaged.test': other}, **options)}")
    assert "BLEU was counted as nrefs:1|case:mixed|eff:no|tok:zh" in caplog.text


def test_identical_systems_are_tied_with_a_p_value_of_one(said, write, tmp_path: Path) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": ONE})
    said(f"a={a}", f"b={b}", f"output={tmp_path}/both.md")
    text = (tmp_path / "both.md").read_text()
    assert {tuple(line[3:6]) for line in table(text, "Scores")} == {("+0.00", "1.0000", "1.0000")}
    assert table(text, "Sentence by sentence") == [["0", "0", "5", "5"]]
    assert "is better by most" not in text


def test_two_checkpoints_of_one_run(said, write) -> None:
    run = write("a", {"averaged.test": ONE, "last.test": OTHER})
    printed = said(f"a={run}", f"b={run}", "b_checkpoint=last", "training_sentences=2")
    assert f"b: {run}, checkpoint last\n" in printed
    assert "the first 2 training sentences" in printed
    assert "There is no training text" in said(f"a={run}", f"b={run}", "a_checkpoint=last", "training_sentences=0")


def test_an_evaluation_has_one_checkpoint_and_that_is_meant(said, write) -> None:
    a, b = write("a", {"last.test": ONE}), write("b", {"step_7.test": OTHER}, result="evaluation.json")
    assert f"{b}, checkpoint step_7" in said(f"a={a}", f"b={b}", "checkpoint=last")


def test_a_copy_of_the_data_in_another_folder_is_the_same_data(said, write) -> None:
    a, b = write("a", {"best.test": ONE}), write("b", {"best.test": OTHER}, data={"name": "copied"})
    assert "5 sentences" in said(f"a={a}", f"b={b}", "checkpoint=best")


def test_training_text_that_is_gone_is_said(said, write) -> None:
    a, b = write("a", {"best.test": ONE}), write("b", {"best.test": OTHER})
    (a / "train.en").unlink()
    assert "train.en is not a file" in said(f"a={a}", f"b={b}", "checkpoint=best")


def refused(said: Callable[..., str], *arguments: str) -> str:
    """The message of the error."""
    with pytest.raises(ValueError, match=r".") as error:
        said(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_finished_run_is_refused(said, write, tmp_path: Path) -> None:
    good = write("good", {"averaged.test": ONE})
    assert f"b={tmp_path} must be a finished run's folder" in refused(said, f"a={good}", f"b={tmp_path}")
    assert "b=/nowhere must be" in refused(said, f"a={good}", "b=/nowhere")
    stopped = write("stopped", {"averaged.test": ONE}, status="running")
    assert "but its state is stopped; finish it, or name another" in refused(said, f"a={stopped}", f"b={good}")
    damaged = write("damaged", {"averaged.test": ONE})
    (damaged / "result.json").write_text("{")
    assert "but its state is missing" in refused(said, f"a={damaged}", f"b={good}")
    without = write("without", {"averaged.test": ONE}, data={"corpus": {}})
    assert "no data.corpus._target_" in refused(said, f"a={without}", f"b={good}")


def test_missing_translations_are_refused_with_what_to_do(said, write) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": OTHER})
    message = refused(said, f"a={a}", f"b={b}", "b_checkpoint=best")
    assert f"b={b} has no translations best.test (there are: averaged.test)" in message
    assert "b_checkpoint=" in message
    assert "task=evaluate checkpoint=... data.split=test" in message
    assert "has no translations averaged.dev" in refused(said, f"a={a}", f"b={b}", "data.split=dev")
    (a / "translations" / "averaged.test.txt").unlink()
    assert "(there are: none)" in refused(said, f"a={a}", f"b={b}")


def test_an_evaluation_of_another_split_is_refused(said, write) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.dev": OTHER}, result="evaluation.json")
    assert "is an evaluation of dev, not of test; give data.split=dev" in refused(said, f"a={a}", f"b={b}")


def test_other_sentences_are_refused_with_what_differs(said, write) -> None:
    a = write("a", {"averaged.test": ONE})
    b = write("b", {"averaged.test": OTHER}, references=OTHER, data={"name": "other"})
    message = refused(said, f"a={a}", f"b={b}")
    assert message.startswith("a and b translate different sentences: data.name is small in a and other in b")
    assert f"data.corpus.test.target is {a}/test.de in a and {b}/test.de in b" in message


def test_data_that_changed_since_are_refused(said, write) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": OTHER})
    text = (b / "test.de").read_text()
    (b / "test.de").write_text(text.replace("Katze", "Maus"))
    assert "in the folder's result; name the data" in refused(said, f"a={a}", f"b={b}")
    for file in ("test.en", "test.de"):
        (b / file).write_text((b / file).read_text() + "x\n")
    assert "5 translations for 6 sentences" in refused(said, f"a={a}", f"b={b}")
    moved = [f"data.test.{side}={a}/test.{language}" for side, language in (("source", "en"), ("target", "de"))]
    printed = said(f"a={a}", f"b={b}", groups=["data=text", *moved])  # what the user names counts
    assert "test of text, 5 sentences" in printed
    assert "There is no training text" in printed


def test_the_same_twice_is_refused(said, write, tmp_path: Path) -> None:
    run = write("a", {"averaged.test": ONE})
    (tmp_path / "link").symlink_to(run)
    message = refused(said, f"a={run}", f"b={tmp_path}/link", f"output={tmp_path}/both.md")
    assert message == f"a and b are both {run}, checkpoint averaged; name another folder, or give b_checkpoint=last."
    assert not (tmp_path / "both.md").exists()


def test_a_stranger_names_no_code(said, write) -> None:
    a = write("a", {"averaged.test": ONE}, data={"corpus": {"_target_": "os.system", "command": "touch x"}})
    assert "the stored data names os.system; from a file only what is ours there is accepted." in refused(
        said, f"a={a}", f"b={a}", "b_checkpoint=last"
    )


@pytest.mark.parametrize("key", ["examples", "training_sentences"])
def test_less_than_nothing_is_refused(said, write, key: str) -> None:
    assert f"{key} must be a whole number of at least 0, got -1" in refused(said, "a=x", "b=y", f"{key}=-1")


@pytest.mark.slow
def test_the_command_line(aiayn: CommandLine, write) -> None:
    a, b = write("a", {"averaged.test": ONE}), write("b", {"averaged.test": OTHER})
    done = aiayn("task=compare", f"a={a}", f"b={b}", small=False)
    assert "ar:10000" in done.stdout
    assert "resampling" not in done.stderr
    done = aiayn("task=compare", f"a={a}", "b=/nowhere", small=False, code=1)
    assert done.stderr.startswith("error: b=/nowhere does not exist")


def test_two_parsers_are_compared_by_their_trees(said, tmp_path: Path) -> None:
    gold = ["(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))", "(S (NP (NN a)) (VP (VBZ b)))"]
    mine = [gold[0], "(S (NP (NN a) (VBZ b)))"]
    theirs = ["(S (NP (DT the)) (NN dog) (VP (VBZ sleeps)))", gold[1]]
    trees = tmp_path / "trees"
    trees.write_text("".join(f"{line}\n" for line in gold))
    corpus = {
        "_target_": "aiayn.data.corpora.treebank.Treebank",
        **{"path": None, "sections": {}, "tags": False, "files": {"train": str(trees), "test": str(trees)}},
    }
    for name, outputs in (("a", mine), ("b", theirs)):
        (tmp_path / name / "translations").mkdir(parents=True)
        (tmp_path / name / "translations" / "averaged.test.txt").write_text("".join(f"{line}\n" for line in outputs))
        stored = {key: OmegaConf.to_container(value) for key, value in composed("problem=parsing").metrics.items()}
        config = {
            "data": {"name": "dogs", "corpus": corpus},
            "problem": {"_target_": "aiayn.problems.parsing.Parsing"},
            **{"objective": "evalb", "metrics": stored},
        }
        content = {"status": "done", "config": config, "scores": {"averaged": {"step": 1, "test": {}}}}
        (tmp_path / name / "result.json").write_text(json.dumps(content))
    said(f"a={tmp_path}/a", f"b={tmp_path}/b", f"output={tmp_path}/both.md", "examples=1")
    text = (tmp_path / "both.md").read_text()
    first, *_ = table(text, "Scores")
    assert first[:3] == ["F1", "72.73", "83.33"]
    assert table(text, "Sentence by sentence") == [["1", "1", "0", "0"]]
    assert "chrF" not in text
    assert "perplexity" not in text
