from typing import Any

import numpy as np
import pytest

from aiayn.data.cleaning import (
    DUPLICATE,
    EMPTY,
    HELD_OUT,
    KEPT,
    RATIO,
    TOO_LONG,
    Cleaning,
    NearDuplicates,
    pair_hashes,
    removed_by_rule,
)

NOTHING: tuple[set[str], set[str]] = (set(), set())


def test_a_pair_with_an_empty_side_is_removed() -> None:
    verdicts = Cleaning().judge_text(["a", "", "a", ""], ["b", "b", "", ""], held_out=NOTHING)
    assert verdicts.tolist() == [KEPT, EMPTY, EMPTY, EMPTY]


def test_a_source_or_target_of_dev_or_test_is_removed_on_its_own_side_only() -> None:
    verdicts = Cleaning().judge_text(["a", "c", "x", "b"], ["x", "b", "y", "a"], held_out=({"a"}, {"b"}))
    assert verdicts.tolist() == [HELD_OUT, HELD_OUT, KEPT, KEPT]


def test_an_empty_line_of_dev_is_charged_to_empty() -> None:
    assert Cleaning().judge_text([""], ["b"], held_out=({""}, set())).tolist() == [EMPTY]


def test_the_first_of_equal_pairs_stays_and_the_later_ones_go() -> None:
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "a"), ("a", "b")]
    verdicts = np.full(5, KEPT, np.uint8)
    Cleaning().judge_repetition(verdicts, pair_hashes(*zip(*pairs, strict=True)))
    assert verdicts.tolist() == [KEPT, KEPT, DUPLICATE, KEPT, DUPLICATE]


def test_a_pair_is_no_duplicate_of_one_that_an_earlier_rule_removed() -> None:
    verdicts = np.array([HELD_OUT, KEPT, KEPT], np.uint8)
    Cleaning().judge_repetition(verdicts, np.array([7, 7, 7]))
    assert verdicts.tolist() == [HELD_OUT, KEPT, DUPLICATE]


def test_duplicates_among_many_pairs_are_those_that_a_set_finds() -> None:
    draws = np.random.default_rng(1).integers(997, size=(3001, 2))
    pairs = [(str(a), str(b % 3)) for a, b in draws]
    verdicts = np.full(len(pairs), KEPT, np.uint8)
    Cleaning().judge_repetition(verdicts, pair_hashes(*zip(*pairs, strict=True)))
    firsts = {pair: row for row, pair in reversed(list(enumerate(pairs)))}
    assert verdicts.tolist() == [KEPT if firsts[pair] == row else DUPLICATE for row, pair in enumerate(pairs)]


def test_lengths_at_the_limit_stay_and_above_it_go() -> None:
    verdicts = Cleaning(max_length=11, max_ratio=None).judge_lengths(np.array([11, 12, 2]), np.array([3, 3, 12]))
    assert verdicts.tolist() == [KEPT, TOO_LONG, TOO_LONG]


def test_the_ratio_holds_in_both_directions() -> None:
    verdicts = Cleaning(max_ratio=1.5).judge_lengths(np.array([2, 3, 4, 2]), np.array([3, 2, 2, 4]))
    assert verdicts.tolist() == [KEPT, KEPT, RATIO, RATIO]


def test_the_sources_of_dev_and_test_alone_can_be_removed() -> None:
    cleaning = Cleaning(held_out="source")
    verdicts = cleaning.judge_text(["a", "c", "x"], ["x", "b", "y"], held_out=({"a"}, {"b"}))
    assert verdicts.tolist() == [HELD_OUT, KEPT, KEPT]


def test_what_is_no_choice_of_sides_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.cleaning\.held_out must be true, false or source, got target\."):
        Cleaning(held_out="target")


def test_rules_can_be_switched_off() -> None:
    cleaning = Cleaning(max_length=None, max_ratio=None, held_out=False, duplicates=False)
    verdicts = cleaning.judge_text(["a", "a"], ["b", "b"], held_out=({"a"}, set()))
    cleaning.judge_repetition(verdicts, np.array([7, 7]))
    assert verdicts.tolist() == [KEPT, KEPT]
    assert cleaning.judge_lengths(np.array([997]), np.array([1])).tolist() == [KEPT]


@pytest.mark.parametrize(
    ("sentence", "near"),
    [
        ("Anna called at 6:30.", True),
        ('"anna, called" at 630', True),
        ("Anna called at 5:30 !", False),
        ("Anna called at $6:30 !", False),
        ("\u201e\u00c4RGER\u201c im B\u00fcro \u2013", True),
        ("Anna called at five.", False),
        ("\u00c4RGER im B\u00e4ro", False),
        ("\u6211\u3002", True),
        ("\u6211 17", False),
        ("\u4f60", False),
        ("\u0915\u093f", True),
        ("\u0915\u0940", False),  # another vowel, which is a mark
        ("1989.", True),
        ("?", False),  # without a letter or digit there is nothing to know it by
        ("", False),
    ],
)
def test_a_near_duplicate_differs_in_case_punctuation_and_spaces_only(sentence: str, near: bool) -> None:
    known = NearDuplicates(
        ["Anna called at 6:30 !", "\u00e4rger im B\u00fcro", "\u6211", "\u0915\u093f!", "1989", "!", ""]
    )
    assert (sentence in known) == near


def test_counts_name_every_rule() -> None:
    verdicts = np.array([KEPT, DUPLICATE, DUPLICATE, RATIO], np.uint8)
    assert removed_by_rule(verdicts) == {"empty": 0, "held_out": 0, "duplicate": 2, "too_long": 0, "ratio": 1}


@pytest.mark.parametrize("limits", [{"max_length": 0}, {"max_ratio": 0.5}])
def test_impossible_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"data\.cleaning\.max_\w+ must be at least 1 \(or null\), got 0"):
        Cleaning(**limits)
