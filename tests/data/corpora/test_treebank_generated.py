"""The small grammar: a sentence has one tree, which follows from its words, and comes once."""

import hashlib
import re
from collections.abc import Callable
from functools import cache

import pytest

from aiayn.data.corpora.treebank_generated import LONGEST, SHORTEST, GeneratedTreebank, grammar
from aiayn.data.trees import cleaned, leaves, linearised, tree_of

SIZES = {"trees": 997, "dev": 53, "test": 59}


@pytest.fixture(scope="module")
def trees() -> list[str]:
    return list(GeneratedTreebank(**SIZES).trees("train"))


def trees_over(words: list[str]) -> frozenset[str]:
    """All trees that the grammar has over some words, found bottom up and not as they are generated."""
    rules = {name: [way[1:] for way in ways] for name, ways in grammar()["rules"].items()}

    @cache
    def below(name: str, start: int, end: int) -> frozenset[str]:
        label = name.partition("_")[0]
        if (known := grammar()["words"].get(name)) is not None:
            return frozenset([f"({label} {words[start]})"] if end == start + 1 and words[start] in known else [])
        return inside(name[1:], start, end) if name[0] == "~" else bracketed(label, inside(name, start, end))

    def bracketed(label: str, contents: frozenset[str]) -> frozenset[str]:
        return frozenset(f"({label} {content})" for content in contents)

    @cache
    def inside(name: str, start: int, end: int) -> frozenset[str]:
        return frozenset(tree for way in rules[name] for tree in beside(tuple(way), start, end))

    @cache
    def beside(parts: tuple[str, ...], start: int, end: int) -> frozenset[str]:
        if len(parts) == 1:
            return below(parts[0], start, end)
        return frozenset(
            f"{first} {rest}"
            for middle in range(start + 1, end - len(parts) + 2)
            for first in below(parts[0], start, middle)
            for rest in beside(parts[1:], middle, end)
        )

    return below("S", 0, len(words))


def test_splits_have_their_sizes_and_share_no_sentence() -> None:
    corpus = GeneratedTreebank(**SIZES)
    splits = {split: [source for source, _ in corpus.pairs(split)] for split in corpus.splits()}
    assert {split: len(sources) for split, sources in splits.items()} == {"train": 997, "dev": 53, "test": 59}
    sources = [source for split in splits.values() for source in split]
    assert len(set(sources)) == len(sources)
    assert all(SHORTEST <= len(source.split()) <= LONGEST for source in sources)


def test_the_same_arguments_give_the_same_trees_on_any_machine() -> None:
    first, second, other = (list(GeneratedTreebank(**SIZES, seed=seed).trees("dev")) for seed in (3, 3, 5))
    assert first == second != other
    assert hashlib.sha256("\n".join(first).encode()).hexdigest()[:8] == "d7ee906d"  # of this grammar


def test_a_tree_follows_from_its_words(trees: list[str]) -> None:
    for tree in trees[:101]:
        assert trees_over(leaves(tree)[0]) == {tree}


def test_trees_are_clean_and_come_back_from_their_symbols(trees: list[str]) -> None:
    for tree in trees:
        words, tags = leaves(tree)
        assert cleaned(tree) == tree
        assert tree_of(linearised(tree, tags=False), words, tags) == (tree, False)


def test_every_part_and_word_of_the_grammar_is_used(trees: list[str]) -> None:
    rules, known = grammar()["rules"], grammar()["words"]
    asked = {part.removeprefix("~") for ways in rules.values() for _, *parts in ways for part in parts}
    assert asked | {"S"} == rules.keys() | known.keys()
    assert {word for tree in trees for word in leaves(tree)[0]} == {word for words in known.values() for word in words}


def number_of(subject: str) -> str:
    """ "one" or "many" things, by the first words of a noun phrase that stands before a verb."""
    simple = re.sub(r" \((PP|SBAR) .*", "", subject)  # what follows the head noun
    return "many" if " (CC " in simple or re.search(r"\(NNS \w+\)", simple) else "one"


def test_a_verb_agrees_with_its_subject(trees: list[str]) -> None:
    """In the sentences that are a noun phrase and a verb phrase alone."""
    verbs = {"VBZ": "one", "VBP": "many"}
    checked = {"one": 0, "many": 0}
    for tree in trees:
        _, parts = parts_of(tree)
        if [label for label, _ in map(parts_of, parts)] == ["NP", "VP", "."]:
            tag = leaves(parts[1])[1][0]
            if tag in verbs:
                assert number_of(parts[0]) == verbs[tag], tree
                checked[verbs[tag]] += 1
    assert min(checked.values()) > 100


def test_an_article_fits_the_sound_behind_it(trees: list[str]) -> None:
    assert not [tree for tree in trees if re.search(r"\ba [aeiou]", " ".join(leaves(tree)[0]))]


def parts_of(tree: str) -> tuple[str, list[str]]:
    """Label and parts of a tree."""
    label, _, content = tree[1:-1].partition(" ")
    found, depth, begun = list[str](), 0, 0
    for place, character in enumerate(content):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth and character == ")":
            found.append(content[begun : place + 1].strip())
            begun = place + 1
    return label, found


@pytest.mark.parametrize("size", [0, 200_001])
@pytest.mark.parametrize("split", ["trees", "dev", "test"])
def test_sizes_that_make_no_sense_are_refused(split: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"has 1 to 200000 trees in a split, got {size} in"):
        GeneratedTreebank(**{**SIZES, split: size})


def test_what_the_trees_follow_from_makes_the_fingerprint() -> None:
    make: Callable[..., GeneratedTreebank] = GeneratedTreebank
    prints = [make(**{**SIZES, **more}).fingerprint() for more in ({}, {}, {"seed": 2}, {"dev": 54}, {"tags": True})]
    assert prints[0] == prints[1]
    assert all(prints[0] != other for other in prints[2:])
