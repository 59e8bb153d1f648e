"""Rows that fall behind are stopped, and what that costs is known."""

import math

import numpy as np
import pytest

from aiayn.evaluation.halving import goes_on, replay, rungs


def test_rungs_halve_the_training_down_to_the_least() -> None:
    assert rungs(2000, reduction=2, least=0.1) == [250, 500, 1000]
    assert rungs(2000, reduction=3, least=0.1) == [222, 667]
    assert rungs(3, reduction=2, least=0.1) == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reduction": 1, "least": 0.1}, "reduction must be 2 or more, got 1"),
        ({"reduction": 2, "least": 0.0}, "least must be above 0 and below 1, got 0.0"),
        ({"reduction": 2, "least": 1.0}, "least must be above 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rungs(100, **settings)


@pytest.mark.parametrize(
    ("value", "others", "expected"),
    [
        (-9.0, [], True),
        (2.0, [1, 3], True),
        (1.9, [1, 3], False),
        (3.0, [1, 2, 3], True),
        (1.0, [math.nan], True),
        (math.nan, [1.0], False),
    ],
)
def test_a_row_goes_on_from_the_better_half(value: float, others: list[float], expected: bool) -> None:
    assert goes_on(value, others, reduction=2) is expected


def curve(final: float, end: int = 8, late: int = 0) -> dict[int, float]:
    """Values that rise to `final`; of a late one only behind its `late` steps."""
    return {step: (final if step > late else -9) * (2 - step / end) for step in range(1, end + 1)}


def test_what_is_behind_is_stopped_and_what_that_saves_is_counted() -> None:
    found = replay([curve(-2.0), curve(-1.0), curve(-3.0)], reduction=2, least=0.1)
    assert found.stopped == {2: 1}
    assert found.saved == pytest.approx(7 / 24)
    assert (list(found.wrongly), found.regret) == ([], 0)


def test_a_row_that_comes_late_is_stopped_wrongly_and_it_is_said() -> None:
    found = replay([curve(-2.0), curve(-3.0), curve(-1.0, late=4)], reduction=2, least=0.1)
    assert found.stopped == {1: 1, 2: 1}
    assert found.wrongly == [2]
    assert found.regret == pytest.approx(1)


def test_equal_rows_all_go_on_and_longer_ones_are_compared_where_all_have_been() -> None:
    same = [curve(-1.0) for _ in range(5)]
    assert replay(same, reduction=2, least=0.1).stopped == {}
    longer = replay([curve(-2.0), curve(-4.0, end=24)], reduction=2, least=0.1)
    assert longer.stopped == {1: 3}
    assert longer.saved == pytest.approx(21 / 32)
    assert np.isfinite(longer.regret)
