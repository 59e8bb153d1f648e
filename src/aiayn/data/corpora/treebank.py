"""Constituency trees in brackets: the Penn Treebank's sections, or any files (section 6.3)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiayn.data.parallel_text import Pairs, check_split
from aiayn.data.trees import ANY, cleaned, leaves, linearised, read_trees
from aiayn.files import digest

SPLITS = ("train", "dev", "test")


class Trees:
    """Pairs of a sentence, its words with a space between them, and the symbols of its tree.

    Another treebank is a class that says what its `splits` are and gives their `trees`.

    Args:
        tags: Whether the symbol of a word is its tag; else it is XX, and the tags are not learned.
    """

    def __init__(self, *, tags: bool) -> None:
        self.tags = tags

    def splits(self) -> list[str]:
        """Those that there are."""
        raise NotImplementedError

    def trees(self, split: str) -> Iterator[str]:
        """Cleaned trees of a split, as lines."""
        raise NotImplementedError

    def pairs(self, split: str) -> Pairs:
        """See `ParallelText`."""
        for tree in self.trees(split):
            yield " ".join(leaves(tree)[0]), linearised(tree, tags=self.tags)

    def symbols(self) -> list[str]:
        """Those of the training trees, sorted; each becomes one piece of the vocabulary."""
        found = {ANY} if not self.tags else set()
        for tree in self.trees("train"):
            found.update(linearised(tree, tags=self.tags).split())
        return sorted(found)


class Treebank(Trees):
    """Trees of files, one a line or over several, as in .mrg; plain or ".gz".

    Args:
        path: A folder with the Penn Treebank's sections as folders, 00 to 24, of .mrg files, plain or .gz; where
            `files` names none.
        sections: First and last section of each split, both in it.
        files: A file, or a list of them, for each split.
        tags: See `Trees`.

    Raises:
        ValueError: if neither is given, or sections are not two numbers.
    """

    def __init__(
        self,
        *,
        path: str | Path | None,
        sections: Mapping[str, Sequence[int]],
        files: Mapping[str, Any] | None,
        tags: bool = False,
    ) -> None:
        super().__init__(tags=tags)
        self.path = None if path is None else Path(path)
        self.sections = sections
        self.given = {split: files[split] for split in SPLITS if files and files.get(split)}
        if not self.given and (self.path is None or not self.path.is_dir()):
            raise ValueError(
                f"data.path={path} is no folder of a treebank's sections, and data.trees names no files; give "
                "data.trees.train and data.trees.dev, or data.path."
            )
        if not isinstance(sections, Mapping):
            raise ValueError(f"data.sections must name the sections of train, dev and test, got {sections}.")
        for split, ends in sections.items():
            if not (isinstance(ends, Sequence) and [type(end) for end in ends] == [int, int] and ends[0] <= ends[1]):
                raise ValueError(
                    f"data.sections.{split} must be the first and the last section, such as [2, 21], got {ends}."
                )

    def splits(self) -> list[str]:
        """Those whose files are given, or all three of a folder of sections."""
        return list(self.given or self.sections)

    def files(self, split: str) -> list[Path]:
        """The files of a split, in their order.

        Raises:
            ValueError: if there are none.
        """
        check_split(split, self.splits())
        if self.given:
            named = self.given[split]
            found = [Path(named)] if isinstance(named, str | Path) else [Path(file) for file in named]
            if missing := [file for file in found if not file.is_file()]:
                raise ValueError(f"data.trees.{split}={missing[0]} is not a file. Give the path of a file of trees.")
            return found
        assert self.path is not None
        first, last = self.sections[split]
        folders = [self.path / f"{part:02}" for part in range(first, last + 1)]
        found = [file for folder in folders for end in (".mrg", ".mrg.gz") for file in sorted(folder.glob(f"*{end}"))]
        if not found:
            raise ValueError(
                f"data.path={self.path} has no *.mrg file in the sections {first:02} to {last:02}, {split}."
            )
        return found

    def trees(self, split: str) -> Iterator[str]:
        """See `Trees`; what is a trace alone is left out.

        Raises:
            ValueError: as `read_trees`, or if a split has no tree.
        """
        empty = True
        for file in self.files(split):
            for tree in filter(None, map(cleaned, read_trees(file))):
                empty = False
                yield tree
        if empty:
            raise ValueError(
                f"data.trees.{split} is empty: there is no tree in {', '.join(map(str, self.files(split)))}."
            )

    def fingerprint(self) -> dict[str, Any]:
        """Digests of the contents, and what is made of them."""
        return {"tags": self.tags, **{split: [digest(file) for file in self.files(split)] for split in self.splits()}}
