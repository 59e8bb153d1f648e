"""What becomes of scores once a model has translated."""

from functools import partial

import pytest

from aiayn.evaluation.metric import chrf, paper_bleu, sacre_bleu
from aiayn.tasks.evaluate import panel


def test_a_metric_that_refuses_the_text_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"bleu": sacre_bleu, "paper": paper_bleu, "lower": partial(sacre_bleu, lowercase=True), "chrf": chrf}
    hypotheses, references = ["a well @-@ known text", "b"], ["a well-known text", "b"]
    scores = panel(hypotheses, references, metrics=metrics, language="en")
    assert list(scores) == ["bleu", "lower", "chrf"]
    assert "paper is left out: the paper's BLEU splits words" in caplog.text
    assert scores["lower"].value == pytest.approx(sacre_bleu(hypotheses, [references], lowercase=True).value)
