"""What becomes of scores once a model has translated."""

import resource
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aiayn.commands.evaluate import Evaluation, panel
from aiayn.evaluation.metric import Score, chrf, paper_bleu, sacre_bleu


def test_a_metric_that_refuses_the_text_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"bleu": sacre_bleu, "paper": paper_bleu, "lower": partial(sacre_bleu, lowercase=True), "chrf": chrf}
    hypotheses, references = ["a well @-@ known text", "b"], ["a well-known text", "b"]
    scores = panel(hypotheses, references, metrics=metrics, language="en")
    assert list(scores) == ["bleu", "lower", "chrf"]
    assert "paper is left out: the paper's BLEU splits words" in caplog.text
    assert scores["lower"].value == pytest.approx(sacre_bleu(hypotheses, [references], lowercase=True).value)


def test_what_is_kept_of_translations_is_whole_or_as_it_was(tmp_path: Path) -> None:
    def write(sentences: int) -> None:
        counts = np.zeros((sentences, 12))
        Evaluation(["a"], {}, exact_match=0.0, perplexity=1.0, statistics=counts).write(tmp_path / "averaged.dev")

    write(2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1009, before[0][1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match=r"requested and \d+ written"):
            write(97)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    assert len(np.load(tmp_path / "averaged.dev.statistics.npy")) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_scores_are_logged_before_ter_begins(caplog: pytest.LogCaptureFixture) -> None:
    def ter(hypotheses: list[str], references: list[list[str]], *, language: str | None) -> Score:
        assert caplog.messages == ["last/dev, before TER: BLEU 100.00, chrF2 100.00"]
        return Score("TER", 0.0, "")

    caplog.set_level("INFO")
    metrics = {"ter": ter, "bleu": sacre_bleu, "chrf": chrf}
    text = ["one two three four five"]
    assert list(panel(text, text, metrics=metrics, language="en", name="last/dev")) == list(metrics)
