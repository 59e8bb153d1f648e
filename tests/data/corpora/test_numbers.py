import json
import re
from datetime import date, time
from decimal import Decimal
from itertools import permutations
from random import Random

import pytest

from aiayn.data.corpora.numbers import (
    KINDS,
    LANGUAGES,
    Numbers,
    _sentence,
    phrases,
    write_amount,
    write_date,
    write_position,
    write_time,
)

SIZES = {"pairs": 1009, "dev": 53, "test": 59}


def test_splits_have_their_sizes_and_share_no_source() -> None:
    corpus = Numbers(pairs=7919, dev=53, test=59)  # enough for sentences to be drawn twice
    splits = {split: list(corpus.pairs(split)) for split in corpus.splits()}
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 7919, "dev": 53, "test": 59}
    sources = [source for pairs in splits.values() for source, _ in pairs]
    assert len(set(sources)) == len(sources)


def test_the_same_seed_gives_the_same_text() -> None:
    first, second, other = (list(Numbers(**SIZES, seed=seed).pairs("train")) for seed in (3, 3, 5))
    assert first == second != other


@pytest.mark.parametrize("languages", list(permutations(LANGUAGES, 2)))
def test_a_source_has_one_target_and_every_slot_is_filled(languages: tuple[str, str]) -> None:
    random, targets = Random(7), {}
    for _ in range(5003):
        source, target = _sentence(random, *languages)
        assert targets.setdefault(source, target) == target
        for text in (source, target):
            assert re.fullmatch(r"[A-Z\u00c0].*[^.]\.", text)
            assert not re.search(r"[{}\s]{2}|\u00a0|\u202f", text)
        assert not re.search(r"[0-9]", target)


@pytest.mark.parametrize("column", range(3))
def test_frames_name_the_same_slots_in_every_language(column: int) -> None:
    assert phrases()["frames"].keys() == KINDS.keys()
    for frame in (frame for frames in phrases()["frames"].values() for frame in frames):
        slots = [set(re.findall(r"{(\w+?)(?:_accusative)?}", text)) for text in frame]
        assert slots[column] == slots[0]
    assert all(len({texts[column] for texts in choices}) == len(choices) for choices in phrases()["slots"].values())


@pytest.mark.parametrize(
    ("language", "figures", "words"),
    [
        ("en", "9:08 PM", "nine oh eight in the evening"),
        ("de", "21:08 Uhr", "einundzwanzig Uhr acht"),
        ("fr", "21:08", "vingt et une heures huit"),
    ],
)
def test_times_are_told_as_the_language_does(language: str, figures: str, words: str) -> None:
    assert [write_time(time(21, 8), language, in_words)["time"] for in_words in (False, True)] == [figures, words]


def test_full_hours_have_no_minutes() -> None:
    assert [write_time(time(1, 0), language, True)["time"] for language in LANGUAGES] == [
        "one in the morning",
        "ein Uhr",
        "une heure",
    ]


@pytest.mark.parametrize(
    ("form", "language", "figures", "words"),
    [
        ("full", "en", "Tuesday, January 1, 1980", "Tuesday, the first of January nineteen eighty"),
        ("full", "de", "Dienstag, 1. Januar 1980", "Dienstag, dem ersten Januar neunzehnhundertachtzig"),
        ("full", "fr", "mardi 1 janvier 1980", "mardi premier janvier mille neuf cent quatre-vingt"),
        ("long", "en", "January 1, 1980", "the first of January nineteen eighty"),
        ("long", "de", "1. Januar 1980", "ersten Januar neunzehnhundertachtzig"),
        ("long", "fr", "1 janvier 1980", "premier janvier mille neuf cent quatre-vingt"),
    ],
)
def test_dates_are_written_as_the_language_does(form: str, language: str, figures: str, words: str) -> None:
    new_year = date(1980, 1, 1), form
    assert [write_date(new_year, language, in_words)["date"] for in_words in (False, True)] == [figures, words]


def test_german_ordinals_are_declined() -> None:
    assert write_position(23, "de", True) == {"nth": "dreiundzwanzigste", "nth_accusative": "dreiundzwanzigsten"}
    assert write_position(23, "de", False) == {"nth": "23.", "nth_accusative": "23."}
    assert [write_position(23, language, False)["nth"] for language in ("en", "fr")] == ["23rd", "23e"]


@pytest.mark.parametrize(
    ("language", "figures", "words"),
    [
        ("en", "\u20ac12.05", "twelve euros and five cents"),
        ("de", "12,05 \u20ac", "zw\xf6lf Euro und f\xfcnf Cent"),
        ("fr", "12,05 \u20ac", "douze euros et cinq centimes"),
    ],
)
def test_amounts_name_both_units(language: str, figures: str, words: str) -> None:
    amount = Decimal("12.05"), "EUR"
    assert [write_amount(amount, language, in_words)["amount"] for in_words in (False, True)] == [figures, words]


def test_the_fingerprint_follows_the_arguments() -> None:
    fingerprint = Numbers(**SIZES).fingerprint()
    json.dumps(fingerprint)
    assert fingerprint == Numbers(**SIZES).fingerprint()
    assert fingerprint != Numbers(**SIZES, seed=2).fingerprint()
    assert fingerprint != Numbers(**SIZES, target_language="fr").fingerprint()


def test_unusable_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.target_language must be one of en, de, fr, got xx"):
        Numbers(target_language="xx")
    with pytest.raises(ValueError, match="must differ, got de twice"):
        Numbers(source_language="de")
    with pytest.raises(ValueError, match="got 0 in dev"):
        Numbers(dev=0)
    with pytest.raises(ValueError, match=r"data\.split=train2 does not exist"):
        next(Numbers(**SIZES).pairs("train2"))
