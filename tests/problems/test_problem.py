"""What becomes of scores once a model has translated."""

import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from aiayn.evaluation.metric import Metric, Score, counted, panel
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.metrics.bleu_paper import BleuPaper
from aiayn.evaluation.metrics.chrf import Chrf
from aiayn.evaluation.metrics.ter import Ter
from aiayn.problems.problem import Evaluation


def test_a_metric_that_refuses_the_text_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"bleu": Bleu(), "paper": BleuPaper(), "lower": Bleu(lowercase=True), "chrf": Chrf()}
    hypotheses, references = ["a well @-@ known text", "b"], ["a well-known text", "b"]
    scores, counts = panel(
        metrics, lambda metric: counted(metric, hypotheses, [references], "en"), name="", objective=""
    )
    assert list(scores) == list(counts) == ["bleu", "lower", "chrf"]
    assert "paper is left out: the paper's BLEU splits words" in caplog.text
    assert scores["lower"] == counted(metrics["lower"], hypotheses, [references], "en")[0]


def test_what_is_kept_of_translations_is_whole_or_as_it_was(tmp_path: Path) -> None:
    def write(sentences: int) -> None:
        counts = {"bleu": np.random.default_rng(1).integers(0, 1000, (sentences, 12))}  # which cannot be compressed
        Evaluation(["a"], ["b"] * sentences, {}, counts).write(tmp_path / "averaged.dev")

    write(2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1009, before[0][1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            write(97)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    assert len(np.load(tmp_path / "averaged.dev.statistics.npz")["bleu"]) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_the_objective_is_logged_before_ter_begins(caplog: pytest.LogCaptureFixture) -> None:
    text = ["one two three four five"]

    def count(metric: Metric) -> tuple[Score, np.ndarray]:
        if isinstance(metric, Ter):
            assert caplog.messages == ["last/dev: chrF2 100.00; TER is counted"]
        return counted(metric, text, [text], "en")

    caplog.set_level("INFO")
    metrics = {"ter": Ter(), "bleu": Bleu(), "chrf": Chrf()}
    assert list(panel(metrics, count, name="last/dev", objective="chrf")[0]) == list(metrics)
