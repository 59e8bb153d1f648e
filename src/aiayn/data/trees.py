"""Constituency trees as text: read, cleaned, written as a model reads and writes them, and mended.

A tree is a line, `(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))`, with one space before each bracket that opens inside.
A model writes its *symbols*, `(S (NP DT NN )NP (VP VBZ )VP )S`: closing brackets have their label, and a word is its
tag, or XX whatever the tag is (Vinyals et al. 2015, "Grammar as a Foreign Language", section 3.1).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from aiayn.data.parallel_text import read_lines

ANY = "XX"  # in the place of every tag
TOP = "TOP"  # above what has no single root; EVALB's parameters leave it out
TRACE = "-NONE-"  # the tag of what is no word
# Of words whose form decides their tag in the Penn Treebank. EVALB leaves some out by it, in both trees or in none.
PUNCTUATION = {
    **{word: word for word in (",", "``", "''", "-LRB-", "-RRB-", "$", "#")},
    **dict.fromkeys((".", "?", "!"), "."),
    **dict.fromkeys((":", ";", "--", "..."), ":"),
}
PUNCTUATION_TAGS = set(PUNCTUATION.values())
# Of a bracket's label: function tags, indices and alternatives. -LRB- and the like are whole labels.
FUNCTION = re.compile(r"(?<=.)[-=|].*")
# White space is that of ASCII: a word may hold a thin space.
TOKEN = re.compile(r"\(([^\s()]*)\s+([^\s()]+)\s*\)|\(([^\s()]*)|(\))|\s+|([^\s()]+)", re.ASCII)

# A word with its tag in brackets; or a label, and what is in its bracket.
Node: TypeAlias = "str | tuple[str, list[Node]]"


def read_trees(path: Path) -> Iterator[str]:
    """The trees of a file, plain or ".gz": one a line, or over several lines as in the Penn Treebank's .mrg.

    Raises:
        ValueError: with file and line, if brackets do not match, one is empty, or a word has no tag of its own; or as
            `read_lines`.
    """
    lines: list[str] = []
    depth, begun = 0, 1
    for number, line in enumerate(read_lines(path), 1):
        lines.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            yield from _read("\n".join(lines), path, begun)
            lines, depth, begun = [], 0, number + 1
    yield from _read("\n".join(lines), path, begun)


def _read(text: str, path: Path, begun: int) -> Iterator[str]:
    """The trees of a text that begins at a line of a file."""

    def wrong(place: int, what: str) -> ValueError:
        return ValueError(f"{path}, line {begun + text.count(chr(10), 0, place)}: {what}.")

    parts: list[str] = []
    open_: list[int] = []  # where
    for token in TOKEN.finditer(text):
        kind, place = token.lastindex, token.start()
        if kind is None:
            continue
        if kind == 5 or (kind == 2 and not token[1]):
            raise wrong(place, f"{token[5] or token[2]} is no word with its tag, (TAG word)")
        if kind == 2 and not open_:
            raise wrong(place, f"({token[1]} {token[2]}) is a word outside of a tree")
        if kind == 4 and not open_:
            raise wrong(place, "a bracket is closed that was not opened")
        if kind == 4 and parts[-1].startswith("(") and not parts[-1].endswith(")"):
            raise wrong(open_[-1], "a bracket is empty; as words, brackets are written -LRB- and -RRB-")
        if kind == 3:
            open_.append(place)
        elif kind == 4:
            open_.pop()
        parts.append(f"({token[1]} {token[2]})" if kind == 2 else token[0])
        if not open_:
            yield " ".join(parts).replace(" )", ")")
            parts = []
    if open_:
        raise wrong(open_[0], f"{len(open_)} brackets of the tree that begins here are not closed")


def cleaned(tree: str) -> str:
    """Without traces, what is empty then, and function tags; "" if nothing is left.

    A bracket without a label, as around the trees of the Penn Treebank, goes, and is TOP where it holds several or a
    word. Unary chains stay, also those of one label that a trace has left: EVALB counts them in the treebank's files.
    """
    open_: list[tuple[str, list[str]]] = [("", [])]
    for token in TOKEN.finditer(tree):
        kind = token.lastindex
        if kind == 2:
            if token[1] != TRACE:
                open_[-1][1].append(f"({token[1]} {token[2]})")
        elif kind == 3:
            open_.append((FUNCTION.sub("", token[3]) if not token[3].startswith("-") else token[3], []))
        elif kind == 4:
            label, inside = open_.pop()
            if inside:
                open_[-1][1].extend([f"({label} {' '.join(inside)})"] if label else inside)
    [(_, inside)] = open_
    if len(inside) == 1 and inside[0].count("(") > 1:
        return inside[0]
    return f"({TOP} {' '.join(inside)})" if inside else ""


def leaves(tree: str) -> tuple[list[str], list[str]]:
    """Its words, and their tags."""
    found = [(token[2], token[1]) for token in TOKEN.finditer(tree) if token.lastindex == 2]
    return [word for word, _ in found], [tag for _, tag in found]


def tags_by_form(words: Sequence[str]) -> list[str]:
    """Tags of words of which none is known: that of `PUNCTUATION`, or XX; it is the form that decides, and no tree."""
    return [PUNCTUATION.get(word, ANY) for word in words]


def with_punctuation(tree: str, tags: Sequence[str]) -> str:
    """The tree with these tags where either they or its own are of punctuation."""
    others = iter(tags)

    def tagged(token: re.Match[str]) -> str:
        if token.lastindex != 2:
            return token[0]
        other = next(others)
        return _leaf(token[2], other) if {other, token[1]} & PUNCTUATION_TAGS else token[0]

    return TOKEN.sub(tagged, tree)


def linearised(tree: str, *, tags: bool) -> str:
    """Its symbols, with a space between them.

    Args:
        tree: A cleaned one.
        tags: Whether a word is its tag, and not XX.
    """
    symbols: list[str] = []
    open_: list[str] = []
    for token in TOKEN.finditer(tree):
        kind = token.lastindex
        if kind == 2:
            symbols.append(token[1] if tags else ANY)
        elif kind == 3:
            open_.append(token[3])
            symbols.append(f"({token[3]}")
        elif kind == 4:
            symbols.append(f"){open_.pop()}")
    return " ".join(symbols)


def tree_of(symbols: str, words: Sequence[str], tags: Sequence[str] | None = None) -> tuple[str, bool]:
    """The tree over these words that symbols say, and whether they had to be mended for it.

    Symbols that `linearised` makes give the tree back. Whatever others say becomes a tree by these rules, where any
    symbol that is no bracket stands for a word:

    1. A closing bracket closes the innermost open one of its label, and with it those inside; without one it is
       passed over.
    2. A word that is one too many is passed over, as is a trace, and what has a bracket inside. What is missing at the
       end goes into the innermost bracket that is still open, or else into the last bracket at the top.
    3. What is open at the end is closed. Brackets without a word go.
    4. Where there is not one bracket around everything, TOP is.

    Args:
        symbols: As `linearised` gives them, with white space between them.
        words: At least one; without brackets, which are -LRB- and -RRB-.
        tags: Theirs, where all words are XX among the symbols. Without them, a word that no symbol stands for has XX.
    """
    found: list[Node] = []
    open_: list[tuple[str, list[Node]]] = [("", found)]
    mended, taken = False, 0
    for symbol in symbols.split():
        if symbol.startswith("(") and len(symbol) > 1:
            open_.append((symbol[1:], []))
        elif symbol.startswith(")") and len(symbol) > 1:
            places = (place for place in range(len(open_) - 1, 0, -1) if open_[place][0] == symbol[1:])
            place = next(places, len(open_))
            mended |= place != len(open_) - 1 or not open_[-1][1]
            while len(open_) > place:
                _close(open_)
        elif taken == len(words) or "(" in symbol or ")" in symbol or symbol == TRACE:
            mended = True
        else:
            mended |= tags is not None and symbol != ANY
            open_[-1][1].append(_leaf(words[taken], tags[taken] if tags else symbol))
            taken += 1
    mended |= taken < len(words) or len(open_) > 1
    last = open_[-1][1]
    if len(open_) == 1 and found and isinstance(found[-1], tuple):
        last = found[-1][1]
    last.extend(_leaf(words[number], tags[number] if tags else ANY) for number in range(taken, len(words)))
    while len(open_) > 1:
        _close(open_)
    whole = len(found) == 1 and isinstance(found[0], tuple)
    return _written(found[0] if whole else (TOP, found)), mended or not whole


def _leaf(word: str, tag: str) -> str:
    return f"({tag} {word})"


def _close(open_: list[tuple[str, list[Node]]]) -> None:
    """Close the innermost bracket; it goes if it is empty."""
    label, inside = open_.pop()
    if inside:
        open_[-1][1].append((label, inside))


def _written(root: Node) -> str:
    """The line of a tree, however deep it is."""
    parts: list[str] = []
    left: list[Node] = [root]  # a text is written as it is
    while left:
        node = left.pop()
        if isinstance(node, str):
            parts.append(node)
        else:
            label, inside = node
            parts.append(f"({label}")
            left += [")", *reversed(inside)]
    return " ".join(parts).replace(" )", ")")


def drawn(tree: str) -> str:
    """A tree over several lines: its brackets below each other, words of one bracket side by side."""
    lines: list[str] = []
    depth, beside = 0, False
    for token in TOKEN.finditer(tree):
        kind = token.lastindex
        if kind == 4:
            lines[-1] += ")"
            depth -= 1
        elif kind == 2 and beside:
            lines[-1] += f" {token[0]}"
        elif kind in (2, 3):
            lines.append(f"{'  ' * depth}{token[0]}")
            depth += kind == 3
        beside = kind != 4 and (kind is not None or beside)
    return "\n".join(lines)
