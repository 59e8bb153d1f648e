"""Brackets of a parse tree against a treebank's, as EVALB reads and counts them (Flupp/evalb:evalb.c).

A word whose tag does not count goes, so punctuation has no part in where brackets begin and end. What is strange in
EVALB, and is so here too:

- A sentence whose words differ from the treebank's, or whose brackets do not match, is an error. One without a word is
  skipped. Neither adds anything, so failing at hard sentences raises F1.
- Output and treebank decide separately which words do not count. A comma that is not tagged as one makes the lengths
  unequal, which is an error; quotation marks under `quotes` are put back.
- Tags are compared whole, `NN-1` is not NN. Labels end before the first - or =, so those of -LRB- and of `-NONE-` as a
  bracket are empty. A bracket without a label, as around the trees of the Penn Treebank, counts as any.
- `(NP )` is a word without letters, `(NP)` an empty bracket, which does not count.
- Words that do not count are part of a sentence's length, but for those under `deleted_for_length`.
- A line may hold several trees, and one closing bracket too many is said to be an open one.

Trees are read here, and not by nltk, which refuses what EVALB counts: broken trees, several, `(NP )`. EVALB's limits
are not kept: lines of 5,000 bytes, 200 words and brackets, 20 quotation marks, an end at the twelfth error. Text
outside of a word's brackets, at which EVALB stops for good, is an error of its sentence. So is a label at the end of a
line, behind which EVALB reads what the line before has left in memory.
"""

import re
from dataclasses import dataclass, field

from aiayn.evaluation.evalb_parameters import Pairs, Parameters

# A word with its tag; an opening bracket; a closing one; text that has no place there. White space is that of C: a word
# may hold a thin space.
TOKEN = re.compile(
    r"\((?P<tag>[^\s()]*)\s+(?P<word>[^\s()]*)\)|\((?P<label>[^\s()]*)|(?P<close>\))|(?P<text>[^\s()]+)", re.ASCII
)
FUNCTION = re.compile("[-=].*")  # of a label: function tags and indices
QUOTES = ("'", '"', "/")
FIGURES = ("matched", "gold", "test", "crossing", "words", "tags")


@dataclass
class Quote:
    """A quotation mark: where it would stand among the words, and which brackets it is in."""

    word: str
    tag: str
    place: int
    opened: int  # brackets before it
    open: list[int]


@dataclass
class Tree:
    """A line as EVALB reads it.

    Attributes:
        words: Those that count; `tags` are theirs.
        labels: Of brackets in the order in which they open, without function tags.
        starts: Of brackets, in words.
        ends: Likewise; -1 of one that is never closed.
        length: Words that count for the length.
        leaves: Words, also those that do not count.
        quotes: What `_put_back` may need.
        errors: What EVALB says of it.
        broken: What is wrong with it, if something is.
    """

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    length: int = 0
    leaves: int = 0
    quotes: list[Quote] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken: str = ""


def read(line: str, parameters: Parameters) -> Tree:
    """What a line holds, and what is wrong with it."""
    tree = Tree()
    stack: list[int] = []
    depth = 0  # below 0 where more is closed than was opened, which EVALB says of the second one
    for token in TOKEN.finditer(line):
        kind = token.lastgroup
        if kind == "word":
            tag, word = token["tag"], token["word"]
            tree.leaves += 1
            tree.length += tag not in parameters.deleted_for_length
            if tag in parameters.quotes and word in QUOTES:
                tree.quotes.append(Quote(word, tag, len(tree.words), len(tree.labels), list(stack)))
            if tag not in parameters.deleted:
                tree.words.append(word)
                tree.tags.append(tag)
        elif kind == "label":
            depth += 1
            stack.append(len(tree.labels))
            tree.labels.append(FUNCTION.sub("", token["label"]))
            tree.starts.append(len(tree.words))
            tree.ends.append(-1)
        elif kind == "close":
            if stack:
                tree.ends[stack.pop()] = len(tree.words)
            else:
                tree.broken = tree.broken or "a bracket is closed that was not opened"
            if depth < 0:
                tree.errors.append("Bracketing unbalance (too many close bracket)")
            depth -= 1
        elif "Reading sentence" not in tree.errors:
            tree.errors.append("Reading sentence")
            tree.broken = tree.broken or f"{token[0][:40]!r} is no word with its tag in brackets"
    if depth:
        tree.errors.append("Bracketing is unbalanced (too many open bracket)")
        tree.broken = tree.broken or f"brackets that are not closed: {depth}"
    return tree


def _put_back(gold: Tree, test: Tree, parameters: Parameters) -> None:
    """Where one side took a quotation mark for something else, so that only one has deleted it, put it back."""
    for mine in test.quotes:
        place = mine.place  # as it was, also after one of mine was put back there
        for theirs in gold.quotes:
            if theirs.place == place and theirs.tag != mine.tag:
                deleted = (theirs.tag in parameters.deleted, mine.tag in parameters.deleted)
                if deleted == (True, False):
                    _insert(theirs, gold)
                elif deleted == (False, True):
                    _insert(mine, test)


def _insert(quote: Quote, tree: Tree) -> None:
    tree.words.insert(quote.place, quote.word)
    tree.tags.insert(quote.place, quote.tag)
    for number in range(quote.opened, len(tree.labels)):
        tree.starts[number] += 1
        tree.ends[number] += 1
    for number in quote.open:
        tree.ends[number] += 1
    for other in tree.quotes[tree.quotes.index(quote) :]:
        other.place += 1


@dataclass(frozen=True)
class Comparison:
    """What EVALB finds in a sentence.

    Attributes:
        length: In words of the treebank.
        status: 0, 1 an error, 2 skipped.
        figures: `FIGURES`, by name; an error of brackets has them too, and adds none to the sums.
        errors: EVALB's messages.
    """

    length: int
    status: int
    figures: dict[str, int]
    errors: list[str]


def compared(gold: Tree, test: Tree, parameters: Parameters) -> Comparison:
    """A tree against the treebank's, in both of which quotation marks may be put back."""
    nothing = dict.fromkeys(FIGURES, 0)
    if not test.words:
        return Comparison(gold.length, 2, nothing, test.errors)
    if difference := _difference(gold, test, parameters):
        return Comparison(gold.length, 1, nothing, [*test.errors, difference])
    return Comparison(gold.length, 1 if test.errors else 0, _figures(gold, test, parameters), test.errors)


def _difference(gold: Tree, test: Tree, parameters: Parameters) -> str:
    """What EVALB says of trees over other words; "" of the same."""
    if len(gold.words) != len(test.words):
        _put_back(gold, test, parameters)
    if len(gold.words) != len(test.words):
        return f"Length unmatch ({len(gold.words)}|{len(test.words)})"
    for one, other in zip(gold.words, test.words, strict=True):
        if not _equal((one, other), parameters.equal_words):
            return f"Words unmatch ({one}|{other})"
    return ""


def _figures(gold: Tree, test: Tree, parameters: Parameters) -> dict[str, int]:
    """`FIGURES` of trees over the same words."""
    theirs, mine = (_brackets(tree, parameters) for tree in (gold, test))
    return {
        "matched": _matched(theirs, mine, parameters),
        "gold": len(theirs),
        "test": len(mine),
        "crossing": _crossing(theirs, mine),
        "words": len(gold.words),
        "tags": sum(_equal(pair, parameters.equal_labels) for pair in zip(gold.tags, test.tags, strict=True)),
    }


def _equal(pair: tuple[str, str], pairs: Pairs) -> bool:
    return pair[0] == pair[1] or pair in pairs


def _brackets(tree: Tree, parameters: Parameters) -> list[tuple[int, int, str]]:
    """Those that count: start, end and label."""
    deleted = {*parameters.deleted, *(one for one, other in parameters.equal_labels if other in parameters.deleted)}
    every = zip(tree.starts, tree.ends, tree.labels, strict=True)
    return [(start, end, label) for start, end, label in every if start != end and label not in deleted]


def _matched(gold: list[tuple[int, int, str]], test: list[tuple[int, int, str]], parameters: Parameters) -> int:
    """Brackets of the treebank that take, one after the other, the first equal one that is left of the output."""
    left: dict[tuple[int, int], list[str]] = {}
    for start, end, label in test:
        left.setdefault((start, end), []).append(label)
    matched = 0
    for start, end, label in gold:
        there = left.get((start, end), [])
        for place, other in enumerate(there):
            if not parameters.labelled or _equal((label, other), parameters.equal_labels):
                del there[place]
                matched += 1
                break
    return matched


def _crossing(gold: list[tuple[int, int, str]], test: list[tuple[int, int, str]]) -> int:
    """Brackets of the output that cross some of the treebank's; each counts once."""
    spans = {(start, end) for start, end, _ in gold}
    return sum(
        any(start < own_start < end < own_end or own_start < start < own_end < end for start, end in spans)
        for own_start, own_end, _ in test
    )
