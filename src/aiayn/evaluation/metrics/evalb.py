"""EVALB: labelled brackets of parse trees against a treebank's, as every parser since 1997 is scored.

Counted as EVALB does (nlp.cs.nyu.edu/evalb, Flupp/evalb:evalb.c), whose parameter files say which labels do not count
and which are equal. A word under a label that does not count goes with it; so punctuation has no part in where brackets
begin and end. What a reader of the figures should know of it:

- A sentence whose words differ from the treebank's is an error, and one without a word is skipped. Neither counts, so
  leaving hard sentences out would raise F1. That is why both are shown.
- The tags of output and treebank decide separately which words do not count. A comma that is not tagged as one makes
  the sentences unequal in length, and that is an error.
- Crossing brackets are those of the output, each once. Function tags of brackets are cut off, those of tags are not.

EVALB has limits that are not here: lines of 5,000 characters, 200 words and brackets, 20 quotation marks, an end after
the eleventh error, and an endless message about text that stands outside of brackets. Here text outside of brackets, or
brackets that are not closed, make an error of that sentence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aiayn.files import digest

# What is counted in a sentence, in this order; `length` is of the treebank's, with punctuation.
COLUMNS = (
    *("matched", "gold", "test", "crossing", "words", "tags"),
    *("complete", "no_crossing", "two_crossing", "valid", "error", "skipped", "sentences", "length"),
)
MATCHED, GOLD, TEST = range(3)
NO_PART = re.compile("[-=].*")  # of a bracket's label: function tags and indices
# A word with its tag; an opening bracket; a closing one; white space; what has no place in a tree. White space is that
# of ASCII: a word may hold a thin space.
TOKEN = re.compile(
    r"\((?P<tag>[^\s()]*)\s+(?P<word>[^\s()]*)\)|\((?P<label>[^\s()]*)|(?P<close>\))|\s+|(?P<other>.)", re.ASCII
)
QUOTES = ("'", '"', "/")
HEAD = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag\n"
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy\n" + "=" * 76
)


@dataclass(frozen=True)
class Parameters:
    """What a parameter file of EVALB says; by default COLLINS.prm, which papers on English use.

    Attributes:
        name: In the signature.
        deleted: Labels that do not count, of words (which go with them) and of brackets (whose content stays).
        deleted_for_length: Tags of words that are no part of a sentence's length.
        quotes: Tags of what may be a quotation mark or a possessive, and is put back where the lengths differ by it.
        equal_labels: Pairs that count as equal.
        equal_words: Likewise.
        labelled: Whether labels have to be equal.
        cutoff: Length up to which a second summary counts.
    """

    name: str = "COLLINS"
    deleted: frozenset[str] = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
    deleted_for_length: frozenset[str] = frozenset({"-NONE-"})
    quotes: frozenset[str] = frozenset()
    equal_labels: frozenset[tuple[str, str]] = frozenset({("ADVP", "PRT")})
    equal_words: frozenset[tuple[str, str]] = frozenset()
    labelled: bool = True
    cutoff: int = 40


SETS = {"DELETE_LABEL": "deleted", "DELETE_LABEL_FOR_LENGTH": "deleted_for_length", "QUOTE_LABEL": "quotes"}
PAIRS = {"EQ_LABEL": "equal_labels", "EQ_WORD": "equal_words"}
NUMBERS = {"LABELED": "labelled", "CUTOFF_LEN": "cutoff"}
IGNORED = ("DEBUG", "MAX_ERROR")  # which say how EVALB prints and when it gives up


def read_parameters(path: Path) -> Parameters:
    """A parameter file of EVALB.

    Raises:
        ValueError: if it cannot be read, or has a line that EVALB does not know.
    """
    found: dict[str, set[object]] = {key: set() for key in (*SETS.values(), *PAIRS.values())}
    numbers: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"metrics.evalb.parameters={path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        key, *rest = line.split(None, 1) or [""]
        value = "".join(rest).strip()
        if line.startswith("#") or len(line.strip()) < 3 or key in IGNORED:
            continue
        if key in SETS and value:
            found[SETS[key]].add(value)
        elif key in PAIRS and len(value.split()) == 2:
            found[PAIRS[key]].add(tuple(value.split()))
        elif key in NUMBERS and value.isdecimal():
            numbers[NUMBERS[key]] = int(value)
        else:
            known = ", ".join([*SETS, *PAIRS, *NUMBERS, *IGNORED])
            raise ValueError(
                f"metrics.evalb.parameters={path}, line {number}, is none of an EVALB parameter file: {line.strip()}; "
                f"it has {known}, each with a value (EQ_ with two)."
            )
    sets = {key: frozenset(values) for key, values in found.items()}
    base = Parameters(name=f"{path.name}-{digest(path)[:8]}", **sets)  # type: ignore[arg-type]
    return replace(base, labelled=bool(numbers.get("labelled", 1)), cutoff=numbers.get("cutoff", 40))


@dataclass
class _Tree:
    """What of a tree is counted.

    Attributes:
        words: Those that count; `tags` are theirs.
        labels: Of brackets in the order in which they open; `starts` and `ends` in words.
        length: Words that count for the length.
        quotes: What `_put_back` may need: word, tag, place, brackets opened before, brackets open.
        broken: What is wrong with it.
    """

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    length: int = 0
    quotes: list["_Quote"] = field(default_factory=list)
    broken: str | None = None


@dataclass
class _Quote:
    word: str
    tag: str
    place: int
    opened: int
    open: list[int]


def _read(line: str, parameters: Parameters) -> _Tree:
    """What a line says; wrong brackets are said in it."""
    tree = _Tree()
    stack: list[int] = []
    for token in TOKEN.finditer(line):
        kind = token.lastgroup
        if kind == "word":
            tag, word = token["tag"], token["word"]
            tree.length += tag not in parameters.deleted_for_length
            if tag in parameters.quotes and word in QUOTES:
                tree.quotes.append(_Quote(word, tag, len(tree.words), len(tree.labels), list(stack)))
            if tag not in parameters.deleted:
                tree.words.append(word)
                tree.tags.append(tag)
        elif kind == "label":
            stack.append(len(tree.labels))
            tree.labels.append(token["label"])
            tree.starts.append(len(tree.words))
            tree.ends.append(len(tree.words))
        elif kind == "close":
            if not stack:
                tree.broken = "a bracket is closed that was not opened"
                break
            tree.ends[stack.pop()] = len(tree.words)
        elif kind == "other":
            text = line[token.start() :].split("(")[0].split(")")[0].strip()
            tree.broken = f"{text[:40]!r} is not a word with its tag in brackets"
            break
    if stack and not tree.broken:
        tree.broken = f"{len(stack)} brackets are not closed"
    return tree


def _put_back(gold: _Tree, test: _Tree, parameters: Parameters) -> None:
    """Where one side took a quotation mark for a possessive, and so deleted it or not, make the sides alike."""
    for mine in test.quotes:
        place = mine.place
        for theirs in gold.quotes:
            if theirs.place == place and theirs.tag != mine.tag:
                deleted = [quote.tag in parameters.deleted for quote in (theirs, mine)]
                if deleted == [True, False]:
                    _insert(theirs, gold)
                elif deleted == [False, True]:
                    _insert(mine, test)


def _insert(quote: _Quote, tree: _Tree) -> None:
    tree.words.insert(quote.place, quote.word)
    tree.tags.insert(quote.place, quote.tag)
    for number in range(quote.opened, len(tree.labels)):
        tree.starts[number] += 1
        tree.ends[number] += 1
    for number in quote.open:
        tree.ends[number] += 1
    for other in tree.quotes[tree.quotes.index(quote) :]:
        other.place += 1


class Evalb:
    """Labelled F1 of brackets, and with it all that EVALB reports.

    Args:
        parameters: A parameter file of EVALB; None: the content of COLLINS.prm.
        max_length: Of the sentences that count, in words of the treebank; None: all.
    """

    higher_is_better = True

    def __init__(self, *, parameters: str | None = None, max_length: int | None = None) -> None:
        if max_length is not None and (type(max_length) is not int or max_length < 1):
            raise ValueError(f"metrics.evalb_40.max_length must be a whole number of at least 1, got {max_length}.")
        self.parameters = Parameters() if parameters is None else read_parameters(Path(parameters))
        self.max_length = max_length
        self.name = "F1" if max_length is None else f"F1, {max_length} words"

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        labels = "labelled" if self.parameters.labelled else "unlabelled"
        return f"evalb:{labels}|prm:{self.parameters.name}|len:{self.max_length or 'all'}"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Of trees in brackets, one a line: `(sentences, len(COLUMNS))`; what does not count has zeros.

        Raises:
            ValueError: if there are several sets of references, or one of them is no tree.
        """
        if len(references) != 1:
            raise ValueError(f"evalb counts against one tree for each sentence, got {len(references)} references.")
        rows = []
        for number, (hypothesis, reference) in enumerate(zip(hypotheses, references[0], strict=True), 1):
            gold = _read(reference, self.parameters)
            if gold.broken or not gold.labels:
                raise ValueError(f"the tree in line {number} of the references: {gold.broken or 'it has no bracket'}.")
            row, _ = self._compared(gold, _read(hypothesis, self.parameters))
            rows.append(row if self.max_length is None or gold.length <= self.max_length else [0] * len(COLUMNS))
        return np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100; 0 where there are no brackets."""
        sums = np.asarray(sums, dtype=float)
        brackets = sums[..., GOLD] + sums[..., TEST]
        return np.divide(200 * sums[..., MATCHED], brackets, out=np.zeros_like(brackets), where=brackets > 0)

    def report(self, hypotheses: list[str], references: list[str]) -> Iterator[tuple[str, str]]:
        """What EVALB prints, as pairs of where it does ("out" or "err") and a line.

        Raises:
            ValueError: as `counts`.
        """
        yield "out", HEAD
        counts = self.counts(hypotheses, [references], None)
        for number, row in enumerate(counts, 1):
            values = dict(zip(COLUMNS, row.tolist(), strict=True))
            if values["error"]:
                sides = (_read(lines[number - 1], self.parameters) for lines in (references, hypotheses))
                yield "err", f"{number} : {self._compared(*sides)[1]}"
            status = 1 if values["error"] else 2 if values["skipped"] else 0
            yield "out", f"{number:4d}  {values['length']:3d}    {status}  {_sentence(values)}"
        yield "out", "=" * 76
        everything = dict(zip(COLUMNS, counts.sum(0).tolist(), strict=True))
        yield "out", _totals(everything)
        yield "out", "=== Summary ===\n"
        yield "out", "-- All --\n" + _summary(everything) + "\n"
        short = counts[counts[:, COLUMNS.index("length")] <= self.parameters.cutoff]
        yield (
            "out",
            f"-- len<={self.parameters.cutoff} --\n" + _summary(dict(zip(COLUMNS, short.sum(0).tolist(), strict=True))),
        )

    def _compared(self, gold: _Tree, test: _Tree) -> tuple[list[int], str]:
        """A row of counts, and what is wrong, as EVALB says it."""
        nothing = [0] * COLUMNS.index("valid")
        if not test.words and not test.broken:
            return [*nothing, 0, 0, 1, 1, gold.length], ""
        if len(gold.words) != len(test.words):
            _put_back(gold, test, self.parameters)
        wrong = test.broken or ""
        if not wrong and len(gold.words) != len(test.words):
            wrong = f"Length unmatch ({len(gold.words)}|{len(test.words)})"
        if not wrong:
            pairs = zip(gold.words, test.words, strict=True)
            differs = [pair for pair in pairs if not _equal(*pair, self.parameters.equal_words)]
            wrong = f"Words unmatch ({differs[0][0]}|{differs[0][1]})" if differs else ""
        if wrong:
            return [*nothing, 0, 1, 0, 1, gold.length], wrong
        theirs, mine = (self._brackets(tree) for tree in (gold, test))
        matched, crossing = self._matched(theirs, mine), _crossing(theirs, mine)
        tags = sum(_equal(*pair, self.parameters.equal_labels) for pair in zip(gold.tags, test.tags, strict=True))
        complete = len(theirs) == len(mine) == matched
        counted = [matched, len(theirs), len(mine), crossing, len(gold.words), tags]
        return [*counted, complete, crossing == 0, crossing <= 2, 1, 0, 0, 1, gold.length], ""

    def _brackets(self, tree: _Tree) -> list[tuple[int, int, str]]:
        """Those that count: start, end and label."""
        found = []
        for start, end, label in zip(tree.starts, tree.ends, tree.labels, strict=True):
            label = NO_PART.sub("", label)
            if start != end and not any(_equal(label, other, self.parameters.equal_labels) for other in self._deleted):
                found.append((start, end, label))
        return found

    @property
    def _deleted(self) -> frozenset[str]:
        return self.parameters.deleted

    def _matched(self, gold: list[tuple[int, int, str]], test: list[tuple[int, int, str]]) -> int:
        """Brackets of the treebank, in their order, that take the first one left of the output that is equal."""
        left: dict[tuple[int, int], list[str]] = {}
        for start, end, label in test:
            left.setdefault((start, end), []).append(label)
        matched = 0
        for start, end, label in gold:
            there = left.get((start, end), [])
            equal = (
                place
                for place, other in enumerate(there)
                if not self.parameters.labelled or _equal(label, other, self.parameters.equal_labels)
            )
            if (place := next(equal, None)) is not None:
                del there[place]
                matched += 1
        return matched


def _equal(one: str, other: str, pairs: frozenset[tuple[str, str]]) -> bool:
    return one == other or (bool(pairs) and ((one, other) in pairs or (other, one) in pairs))


def _crossing(gold: list[tuple[int, int, str]], test: list[tuple[int, int, str]]) -> int:
    """Brackets of the output that cross one of the treebank's."""
    if not gold or not test:
        return 0
    start, end = (np.array([bracket[place] for bracket in gold]) for place in (0, 1))
    own_start, own_end = (np.array([bracket[place] for bracket in test])[:, None] for place in (0, 1))
    left = (start < own_start) & (end > own_start) & (end < own_end)
    right = (start > own_start) & (start < own_end) & (end > own_end)
    return int((left | right).any(1).sum())


def _share(part: int, whole: int, factor: float = 100.0) -> float:
    return factor * part / whole if whole else 0.0


def _sentence(values: dict[str, int]) -> str:
    """The rest of a line of EVALB's table of sentences."""
    matched, gold, test, words = (values[key] for key in ("matched", "gold", "test", "words"))
    return (
        f"{_share(matched, gold):6.2f} {_share(matched, test):6.2f}   {matched:3d}    {gold:3d}  {test:3d}    "
        f"{values['crossing']:3d}   {words:4d}  {values['tags']:4d}   {_share(values['tags'], words):6.2f}"
    )


def _totals(values: dict[str, int]) -> str:
    """The line below EVALB's table of sentences."""
    matched, gold, test = (values[key] for key in ("matched", "gold", "test"))
    tagging = f"  {values['words']:5d} {values['tags']:5d}   {_share(values['tags'], values['words']):6.2f}"
    if not gold or not test:
        return tagging
    shares = f"{_share(matched, gold):6.2f} {_share(matched, test):6.2f}"
    return f"                {shares} {matched:6d} {gold:5d} {test:5d}  {values['crossing']:5d}{tagging}"


def _summary(values: dict[str, int]) -> str:
    """One of EVALB's two summaries."""
    valid = values["valid"]
    recall, precision = (_share(values["matched"], values[side]) for side in ("gold", "test"))
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    counted = {
        "Number of sentence": values["sentences"],
        "Number of Error sentence": values["error"],
        "Number of Skip  sentence": values["skipped"],
        "Number of Valid sentence": valid,
    }
    shown = {
        "Bracketing Recall": recall,
        "Bracketing Precision": precision,
        "Bracketing FMeasure": f1,
        "Complete match": _share(values["complete"], valid),
        "Average crossing": _share(values["crossing"], valid, 1.0),
        "No crossing": _share(values["no_crossing"], valid),
        "2 or less crossing": _share(values["two_crossing"], valid),
        "Tagging accuracy": _share(values["tags"], values["words"]),
    }
    lines = [f"{name:<26}= {value:6d}" for name, value in counted.items()]
    return "\n".join([*lines, *(f"{name:<26}= {value:6.2f}" for name, value in shown.items())])
