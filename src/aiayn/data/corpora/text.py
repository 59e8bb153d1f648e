"""Your own line-aligned files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiayn.data.parallel_text import Pairs, aligned_lines, check_split
from aiayn.files import digest

Files = str | Path | Sequence[str | Path]


class TextFiles:
    """Line-aligned UTF-8 files, plain or gzipped (".gz"), in any pair of languages.

    Args:
        train: `{"source": file or list of files, "target": the same number of files}`; None, or both of its entries
            None, when there is no such split. A split's files are looked for when it is read: preparing needs those of
            all, evaluating those of what it decodes.
        dev: The same for the development set.
        test: The same for the test set.
        tests: The same for further test sets, by name.

    Raises:
        ValueError: if one of `tests` is named as another split, or has a name that no file can have.
    """

    def __init__(
        self,
        *,
        train: Mapping[str, Files] | None = None,
        dev: Mapping[str, Files] | None = None,
        test: Mapping[str, Files] | None = None,
        tests: Mapping[str, Mapping[str, Files]] | None = None,
    ) -> None:
        given = {"train": train, "dev": dev, "test": test}
        for name, files in (tests or {}).items():
            if name in given or not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(
                    f"data.tests.{name}: name a test set otherwise, by letters, digits, and none of .-_ first."
                )
            given[name] = files
        self.given = {split: files for split, files in given.items() if files and any(files.values())}

    def splits(self) -> list[str]:
        return list(self.given)

    def files(self, split: str) -> list[tuple[Path, Path]]:
        """Source and target files of a split; ValueError if one is not there, or there are more on one side."""
        check_split(split, self.splits())
        return _aligned_files(split, self.given[split])

    def pairs(self, split: str) -> Pairs:
        """Stream the pairs of a split; ValueError for unequal line counts, bytes that are not UTF-8, or no pairs."""
        files = self.files(split)
        empty = True
        for source, target in files:
            for pair in aligned_lines(source, target):
                empty = False
                yield pair
        if empty:
            names = ", ".join(f"{source} and {target}" for source, target in files)
            raise ValueError(f"data.{split} is empty: there is no line in {names}. Give files with at least one pair.")

    def fingerprint(self) -> dict[str, Any]:
        """Digests of the contents: neither a copy in another folder nor a new time stamp makes other text of it."""
        return {
            split: [[digest(source), digest(target)] for source, target in self.files(split)] for split in self.given
        }


def _aligned_files(split: str, files: Mapping[str, Files]) -> list[tuple[Path, Path]]:
    """Pairs of files that exist, as many on either side."""
    sides = {}
    for side in ("source", "target"):
        given = files.get(side)
        if not given:
            raise ValueError(f"data.{split}.{side} is missing: give a file of text, one sentence a line.")
        sides[side] = [Path(given)] if isinstance(given, str | Path) else [Path(file) for file in given]
        for file in sides[side]:
            if not file.is_file():
                raise ValueError(f"data.{split}.{side}={file} is not a file. Give the path of an existing text file.")
    if len(sides["source"]) != len(sides["target"]):
        counts = f"{len(sides['source'])} and {len(sides['target'])}"
        raise ValueError(f"data.{split} needs as many source files as target files, got {counts}.")
    return list(zip(sides["source"], sides["target"], strict=True))
