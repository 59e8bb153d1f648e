import logging

import pytest

from aiayn import progress


def test_plain_lines_where_there_is_no_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    with caplog.at_level(logging.INFO), progress.progress("decoding", total=7, done=2) as advance:
        advance(3, lambda: "loss 1.50")
        advance(2)
    assert "decoding: 5 of 7" in caplog.messages[0]
    assert "s left, loss 1.50" in caplog.messages[0]
    assert caplog.messages[-1].startswith("decoding: 7 of 7")


def test_lines_are_rare_and_the_last_one_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), progress.progress("decoding", total=11) as advance:
        for _ in range(11):
            advance()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("decoding: 11 of 11")


def test_what_there_is_to_say_is_asked_for_only_when_it_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    asked = []
    with caplog.at_level(logging.INFO), progress.progress("training", total=11) as advance:
        for step in range(11):
            advance(1, lambda step=step: asked.append(step) or f"loss of {len(asked)} line")
    assert asked == [10]
    assert "loss of 1 line" in caplog.messages[0]


def test_other_ranks_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), progress.progress("decoding", total=1, silent=True) as advance:
        advance()
    assert not caplog.messages
