"""The embedded corpus: generated sentences about counts, places in a row, times, dates, amounts and measures.

The source writes a number in figures or in words, the target always in words, so that there is real translation to
learn: the order of a German number's digits, case and gender, the verb at the end. num2words spells numbers, Babel
writes dates, times and amounts as each language does; numbers.yaml has the phrases around them. A sentence has one
translation, and every frame a proper one in each language.
"""

import datetime
import hashlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import yaml
from babel.dates import format_date, format_time, get_day_names, get_month_names
from babel.numbers import format_currency, format_decimal
from num2words import num2words

LANGUAGES = ("en", "de", "fr")
Texts = list[str]  # English, German, French

PHRASES = Path(__file__).with_suffix(".yaml")
MOST_PAIRS = 1_000_000  # a small part of the sentences there are, so that drawing anew is rare
CURRENCIES = {  # names of the whole and of its hundredth part, in the plural
    "EUR": {"en": ("euros", "cents"), "de": ("Euro", "Cent"), "fr": ("euros", "centimes")},
    "USD": {"en": ("dollars", "cents"), "de": ("Dollar", "Cent"), "fr": ("dollars", "cents")},
}


class Numbers:
    """Generated pairs; the same arguments and libraries give the same text on any machine, and no source comes twice.

    Args:
        source_language: "en", "de" or "fr".
        target_language: Another of them.
        pairs: Pairs in train.
        dev: Pairs in dev.
        test: Pairs in test.
        seed: Of the choice of sentences.
    """

    def __init__(
        self,
        *,
        source_language: str = "en",
        target_language: str = "de",
        pairs: int = 30_000,
        dev: int = 500,
        test: int = 500,
        seed: int = 1,
    ) -> None:
        for side, language in (("source", source_language), ("target", target_language)):
            if language not in LANGUAGES:
                raise ValueError(f"data.{side}_language must be one of {', '.join(LANGUAGES)}, got {language}.")
        if source_language == target_language:
            raise ValueError(f"Source and target language must differ, got {source_language} twice.")
        self.languages = (source_language, target_language)
        self.sizes = {"dev": dev, "test": test, "train": pairs}
        self.seed = seed
        for split, size in self.sizes.items():
            if not 1 <= size <= MOST_PAIRS:
                raise ValueError(f"The generated corpus has 1 to {MOST_PAIRS} pairs in a split, got {size} in {split}.")

    def splits(self) -> list[str]:
        return ["train", "dev", "test"]

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Pairs of a split; the first call generates all of them."""
        if split not in self.sizes:
            raise ValueError(f"data.split={split} does not exist: this corpus has {', '.join(self.splits())}.")
        yield from self._generated[split]

    def fingerprint(self) -> dict[str, Any]:
        """All that the text follows from: the arguments, this file, its phrases, the libraries."""
        return {
            "languages": list(self.languages),
            "sizes": self.sizes,
            "seed": self.seed,
            "code": hashlib.sha256(Path(__file__).read_bytes() + PHRASES.read_bytes()).hexdigest(),
            "libraries": {name: version(name) for name in ("babel", "num2words")},
        }

    @cached_property
    def _generated(self) -> dict[str, list[tuple[str, str]]]:
        random = Random(self.seed)
        pairs: dict[str, str] = {}
        needed = sum(self.sizes.values())
        while len(pairs) < needed:
            source, target = _sentence(random, *self.languages)
            pairs.setdefault(source, target)
        stream = iter(pairs.items())  # in the order in which they were drawn
        return {split: [next(stream) for _ in range(size)] for split, size in self.sizes.items()}


@cache
def phrases() -> dict[str, dict[str, list[Texts]]]:
    """`frames`, sentences with gaps, by the kind of number that they take, and `slots`, what fills the other gaps."""
    return yaml.safe_load(PHRASES.read_text(encoding="utf-8"))


def _sentence(random: Random, source_language: str, target_language: str) -> tuple[str, str]:
    """Draw a frame and what fills it."""
    kind = random.choice(list(KINDS))
    draw, write = KINDS[kind]
    frame, value, in_words = random.choice(phrases()["frames"][kind]), draw(random), random.random() < 0.5
    words = {slot: random.choice(choices) for slot, choices in phrases()["slots"].items()}
    sides = []
    for language, spelled in ((source_language, in_words), (target_language, True)):
        column = LANGUAGES.index(language)
        fillings = {slot: texts[column] for slot, texts in words.items()}
        sides.append(frame[column].format(**fillings, **write(value, language, spelled)))
    return sides[0], sides[1]


def write_number(number: int | Decimal, language: str, in_words: bool) -> dict[str, str]:
    """A count or a measure."""
    return {"n": _words(number, language) if in_words else _plain(format_decimal(number, locale=language))}


def write_position(number: int, language: str, in_words: bool) -> dict[str, str]:
    """An ordinal, and in German its masculine accusative: the weak ending is -en there, and -e in the other frames."""
    if in_words:
        text = _words(number, language, "ordinal")
        return {"nth": text, "nth_accusative": f"{text}n" if language == "de" else text}
    text = {"de": f"{number}.", "fr": f"{number}e"}.get(language) or _words(number, language, "ordinal_num")
    return {"nth": text, "nth_accusative": text}


def write_time(time: datetime.time, language: str, in_words: bool) -> dict[str, str]:
    """A time of day, of twelve hours in English and of twenty-four in German and French."""
    if not in_words:
        text = _plain(format_time(time, "short", locale=language))
        return {"time": f"{text} Uhr" if language == "de" else text}
    hour, minute = (_words(number, language) for number in (time.hour, time.minute))
    if language == "en":
        hour = _words((time.hour - 1) % 12 + 1, language)
        minute = f"oh {minute}" if time.minute < 10 else minute
        part = "morning" if time.hour < 12 else "afternoon" if time.hour < 18 else "evening"
        return {"time": f"{hour} {minute} in the {part}" if time.minute else f"{hour} in the {part}"}
    if language == "de":
        hour, unit = "ein" if time.hour == 1 else hour, "Uhr"
    else:  # hours and minutes are feminine
        hour, minute = (f"{text}e" if text.endswith("un") else text for text in (hour, minute))
        unit = "heure" if time.hour == 1 else "heures"
    return {"time": f"{hour} {unit} {minute}" if time.minute else f"{hour} {unit}"}


def write_date(date_and_form: tuple[datetime.date, str], language: str, in_words: bool) -> dict[str, str]:
    """A date as it follows "on", "am" and "le"; the form is Babel's "long", or "full" with the day of the week."""
    date, form = date_and_form
    if not in_words:
        return {"date": format_date(date, form, locale=language)}
    month, year = get_month_names(locale=language)[date.month], _words(date.year, language, "year")
    weekday = get_day_names(locale=language)[date.weekday()]
    if language == "en":
        text, weekday = f"the {_words(date.day, language, 'ordinal')} of {month} {year}", f"{weekday}, "
    elif language == "de":
        text, weekday = f"{_words(date.day, language, 'ordinal')}n {month} {year}", f"{weekday}, dem "
    else:
        day = "premier" if date.day == 1 else _words(date.day, language)
        # A year takes no -s on cent and vingt, since it says which one, not how many.
        text = f"{day} {month} {year[:-1] if year.endswith(('cents', 'vingts')) else year}"
        weekday = f"{weekday} "
    return {"date": weekday + text if form == "full" else text}


def write_amount(amount_and_currency: tuple[Decimal, str], language: str, in_words: bool) -> dict[str, str]:
    """An amount of money."""
    amount, currency = amount_and_currency
    if not in_words:
        return {"amount": _plain(format_currency(amount, currency, locale=language))}
    whole, part = CURRENCIES[currency][language]
    text = f"{_words(int(amount), language)} {whole}"
    joint = {"en": "and", "de": "und", "fr": "et"}[language]
    cents = int(amount * 100) % 100
    return {"amount": f"{text} {joint} {_words(cents, language)} {part}" if cents else text}


def _draw_plural(random: Random, low: int, high: int) -> int:
    """A number before a noun; those that end in "one" would have to agree with the noun's gender."""
    number = random.randint(low, high)
    return number + 1 if number % 10 == 1 and number % 100 != 11 else number


def _draw_date(random: Random) -> tuple[datetime.date, str]:
    date = datetime.date(1901, 1, 1) + datetime.timedelta(days=random.randrange(130 * 365))
    return date, random.choice(("long", "full"))


def _draw_amount(random: Random) -> tuple[Decimal, str]:
    amount = _draw_plural(random, 2, 998) + Decimal(random.randrange(0, 100, 5)) / 100
    return amount, random.choice(list(CURRENCIES))


def _plain(text: str) -> str:
    """Babel's no-break spaces as plain ones."""
    return text.replace("\u00a0", " ").replace("\u202f", " ")


@cache
def _words(number: int | Decimal, language: str, form: str = "cardinal") -> str:
    return num2words(number, lang=language, to=form)


# For each kind of sentence, how its value is drawn, and how a language writes it in figures or in words.
KINDS: dict[str, tuple[Callable[[Random], Any], Callable[[Any, str, bool], dict[str, str]]]] = {
    "count": (lambda random: _draw_plural(random, 2, 998), write_number),
    "population": (lambda random: _draw_plural(random, 1000, 99_998), write_number),
    "measure": (lambda random: random.randint(2, 99) + Decimal(random.randint(1, 9)) / 10, write_number),
    "position": (lambda random: random.randint(2, 199), write_position),
    "time": (lambda random: datetime.time(random.randint(1, 23), random.randint(0, 59)), write_time),
    "date": (_draw_date, write_date),
    "amount": (_draw_amount, write_amount),
}
