"""Generated trees of a small grammar, so that parsing can be tried without a treebank.

Everything that attaches is decided by the words: `of` belongs to the noun before it, `with` to the verb, a verb agrees
with its subject in number. So a sentence has one tree, and a small model learns it in minutes.
"""

import hashlib
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

import yaml

from aiayn.data.corpora.treebank import Trees
from aiayn.data.parallel_text import check_split
from aiayn.data.trees import leaves

GRAMMAR = Path(__file__).with_suffix(".yaml")
SHORTEST, LONGEST = 3, 25  # words
MOST_TREES = 200_000


class GeneratedTreebank(Trees):
    """Generated trees; the same arguments give the same ones on any machine, and no sentence comes twice.

    Args:
        trees: In train.
        dev: In dev.
        test: In test.
        seed: Of the choice.
        tags: See `Trees`.
    """

    def __init__(
        self, *, trees: int = 10_000, dev: int = 500, test: int = 500, seed: int = 1, tags: bool = False
    ) -> None:
        super().__init__(tags=tags)
        self.sizes = {"dev": dev, "test": test, "train": trees}
        self.seed = seed
        for split, size in self.sizes.items():
            if not 1 <= size <= MOST_TREES:
                raise ValueError(
                    f"The generated treebank has 1 to {MOST_TREES} trees in a split, got {size} in {split}."
                )

    def splits(self) -> list[str]:
        """All three."""
        return ["train", "dev", "test"]

    def trees(self, split: str) -> Iterator[str]:
        """See `Trees`; the first call generates all of them."""
        check_split(split, self.splits())
        yield from self._generated[split]

    def fingerprint(self) -> dict[str, Any]:
        """All that the trees follow from: the arguments, this file and its grammar."""
        code = hashlib.sha256(Path(__file__).read_bytes() + GRAMMAR.read_bytes()).hexdigest()
        return {"tags": self.tags, "sizes": self.sizes, "seed": self.seed, "code": code}

    @cached_property
    def _generated(self) -> dict[str, list[str]]:
        random, found = Random(self.seed), dict[str, str]()
        while len(found) < sum(self.sizes.values()):
            tree = _drawn(random, "S")
            words, _ = leaves(tree)
            if SHORTEST <= len(words) <= LONGEST:
                found.setdefault(" ".join(words), tree)
        stream = iter(found.values())
        return {split: [next(stream) for _ in range(size)] for split, size in self.sizes.items()}


@cache
def grammar() -> dict[str, dict[str, Any]]:
    """`rules`, the ways of each part, each a weight and its parts; `words`, by their tag.

    What follows an underscore in a name is no part of the label, as `NP_plural`. A part that begins with ~ has no
    bracket of its own: what is in it stands in its place.
    """
    return yaml.safe_load(GRAMMAR.read_text(encoding="utf-8"))


def _drawn(random: Random, name: str) -> str:
    """A tree below a part of the grammar."""
    if (words := grammar()["words"].get(name)) is not None:
        return f"({name.partition('_')[0]} {random.choice(words)})"
    return f"({name.partition('_')[0]} {_inside(random, name)})"


def _inside(random: Random, name: str) -> str:
    """What is in a part's bracket."""
    ways = grammar()["rules"][name]
    [(_, *parts)] = random.choices(ways, weights=[way[0] for way in ways])
    return " ".join(_inside(random, part[1:]) if part.startswith("~") else _drawn(random, part) for part in parts)
