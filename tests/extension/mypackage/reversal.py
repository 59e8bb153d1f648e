"""A corpus: sentences of a few words, and the same words backwards."""

import random
from collections.abc import Iterator
from typing import Any

WORDS = [
    "ash",
    "birch",
    "cedar",
    "elm",
    "fir",
    "hazel",
    "larch",
    "maple",
    "oak",
    "pine",
    "rowan",
    "spruce",
    "willow",
    "yew",
]


class Reversal:
    """As many pairs in each split as it is told."""

    def __init__(self, *, pairs: int, dev: int, test: int, seed: int) -> None:
        self.sizes, self.seed = {"train": pairs, "dev": dev, "test": test}, seed

    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self.sizes)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Sources and targets."""
        generator = random.Random(f"{self.seed} {split}")
        for _ in range(self.sizes[split]):
            words = generator.choices(WORDS, k=generator.randint(2, 7))
            yield " ".join(words), " ".join(reversed(words))

    def fingerprint(self) -> dict[str, Any]:
        """What the text follows from."""
        return {"reversal": self.sizes, "seed": self.seed}
