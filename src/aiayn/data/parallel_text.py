"""Parallel text: pairs of one source and one target sentence, from files or through `datasets`.

The first station of a sentence's way. A corpus is any object that has the three methods of `ParallelText`; to add one,
write a class like those here and name it in a YAML file under conf/data. Sentences are plain strings that hold no line
feed, so that a pair can be stored as one line of each of two files.
"""

import gzip
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from aiayn.files import digest

logger = logging.getLogger(__name__)

Pairs = Iterator[tuple[str, str]]
Files = str | Path | Sequence[str | Path]


class ParallelText(Protocol):
    """What a corpus has to offer."""

    def splits(self) -> list[str]:
        """Names of the splits there are: "train" and "dev", and "test" where the corpus has one."""

    def pairs(self, split: str) -> Pairs:
        """Pairs of (source, target) in a fixed order, streamed, so that memory does not grow with the corpus."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able description that changes when the text would: a prepared corpus is found again by it."""


class TextFiles:
    """Line-aligned UTF-8 files, plain or gzipped (".gz"), in any pair of languages.

    Args:
        train: `{"source": file or list of files, "target": the same number of files}`; None, or both of its entries
            None, when there is no such split. A split's files are looked for when it is read: preparing needs those of
            all, evaluating those of what it decodes.
        dev: The same for the development set.
        test: The same for the test set.
    """

    def __init__(
        self,
        *,
        train: Mapping[str, Files] | None = None,
        dev: Mapping[str, Files] | None = None,
        test: Mapping[str, Files] | None = None,
    ) -> None:
        given = {"train": train, "dev": dev, "test": test}
        self.given = {split: files for split, files in given.items() if files and any(files.values())}

    def splits(self) -> list[str]:
        return list(self.given)

    def files(self, split: str) -> list[tuple[Path, Path]]:
        """Source and target files of a split; ValueError if one is not there, or there are more on one side."""
        _check_split(split, self.splits())
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


class HubText:
    """A data set of the Hugging Face hub, or a local one with the same columns, through `datasets.load_dataset`.

    Rows are `{"translation": {"de": ..., "en": ...}}` (wmt/wmt14) or `{"de": ..., "en": ...}` (bentrevett/multi30k).

    Args:
        name: Name on the hub, such as "wmt/wmt14".
        source_language: Column of the source sentences.
        target_language: Column of the target sentences.
        subset: Configuration on the hub, such as "de-en"; in a local folder, the sub-folder of that name.
        splits: Our name of each split and the data set's; None as the data set's name leaves a split out.
        path: Local data set (folder or file of Parquet, JSON lines, ...) that is read in place of the hub's.
        revision: Commit on the hub. Without one the text is what the hub holds when it is read, and a prepared corpus
            of that name is found again though the hub's text has changed.
    """

    def __init__(
        self,
        *,
        name: str,
        source_language: str,
        target_language: str,
        subset: str | None = None,
        splits: Mapping[str, str | None] | None = None,
        path: str | Path | None = None,
        revision: str | None = None,
    ) -> None:
        self.name = name
        self.languages = (source_language, target_language)
        self.subset = subset
        self.names = {"train": "train", "dev": "validation", "test": "test"} if splits is None else dict(splits)
        self.path = None if path is None else Path(path)
        self.revision = revision
        if self.path is not None:
            if not self.path.exists():
                raise ValueError(f"data.path={path} does not exist. Give a local data set, or null to take {name}.")
            if subset is not None and (self.path / subset).is_dir():
                self.path /= subset

    def splits(self) -> list[str]:
        return [split for split, theirs in self.names.items() if theirs is not None]

    def pairs(self, split: str) -> Pairs:
        """Stream the pairs of a split out of Arrow batches; a missing sentence is read as an empty one."""
        _check_split(split, self.splits())
        dataset = self._load(split)
        if len(dataset) == 0:
            raise ValueError(
                f"data.{split} is empty: split {self.names[split]} of {self.path or self.name} has no rows."
            )
        for table in dataset.with_format("arrow").iter(batch_size=10_000):
            columns = table.flatten()  # the struct `translation` becomes columns "translation.de", "translation.en"
            yield from zip(*(self._column(columns, language) for language in self.languages), strict=True)

    def fingerprint(self) -> dict[str, Any]:
        """What names the text. Needs no network: a machine without one still finds a corpus prepared elsewhere."""
        chosen = {"languages": list(self.languages), "splits": self.names}
        if self.path is None:
            return chosen | {"name": self.name, "subset": self.subset, "revision": self.revision}
        files = sorted(file for file in self.path.rglob("*") if file.is_file()) or [self.path]
        return chosen | {"files": [[str(file.relative_to(self.path)), digest(file)] for file in files]}

    def _load(self, split: str) -> Any:
        import datasets  # takes a second to import, and files do not need it

        try:
            if self.path is not None and self.path.is_file():
                kind = {".jsonl": "json"}.get(self.path.suffix, self.path.suffix[1:] or "text")
                theirs = self.names[split]
                return datasets.load_dataset(kind, data_files={theirs: str(self.path)}, split=theirs)
            if self.path is not None:
                return datasets.load_dataset(str(self.path), split=self.names[split])
            return datasets.load_dataset(self.name, self.subset, split=self.names[split], revision=self.revision)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            # The library's errors run over many lines, and their first line alone says what happened.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            if self.path is not None:
                raise ValueError(
                    f"data.path={self.path}, split {self.names[split]}, cannot be read: {reason}."
                ) from error
            raise ValueError(
                f"{self.name} cannot be loaded from the Hugging Face hub: {reason}. Connect to the network, "
                "or give a local copy of the data set: data.path=..."
            ) from error

    def _column(self, table: Any, language: str) -> list[str]:
        import pyarrow.compute as pc

        name = next((name for name in (f"translation.{language}", language) if name in table.column_names), None)
        if name is None:
            columns = ", ".join(table.column_names)
            raise ValueError(f"{self.path or self.name} has no column for language {language}: it has {columns}.")
        return pc.replace_substring(pc.fill_null(table[name], ""), "\n", " ").to_pylist()


def multi30k(
    *,
    path: str | Path | None,
    source_language: str,
    target_language: str,
    test_set: str = "test_2016_flickr",
    revision: str | None = None,
) -> ParallelText:
    """Multi30k, raw: from the folder `path` where it exists (`train.en.gz`, `val.en.gz`, ...), else from the hub.

    Args:
        path: Folder with the files of github.com/multi30k/dataset, data/task1/raw; may be absent.
        source_language: "en", "de" or "fr" (the hub's copy has no French).
        target_language: As source_language.
        test_set: Which test set becomes "test"; the hub's copy has test_2016_flickr only.
        revision: Commit of the hub's copy.
    """
    if path is not None and (folder := Path(path)).is_dir():
        names = {"train": "train", "dev": "val", "test": test_set}
        languages = {"source": source_language, "target": target_language}
        return TextFiles(
            **{
                split: {side: folder / f"{name}.{language}.gz" for side, language in languages.items()}
                for split, name in names.items()
            }
        )
    if test_set != "test_2016_flickr":
        raise ValueError(f"data.test_set={test_set} needs the files of Multi30k, and data.path={path} is no folder.")
    logger.warning(
        "There is no folder data.path=%s: Multi30k comes from the hub (bentrevett/multi30k, %s).",
        path,
        revision or "not pinned: data.corpus.revision=COMMIT pins it",
    )
    return HubText(
        name="bentrevett/multi30k",
        source_language=source_language,
        target_language=target_language,
        revision=revision,
    )


def _check_split(split: str, splits: list[str]) -> None:
    if split not in splits:
        raise ValueError(f"data.split={split} does not exist: this corpus has {', '.join(splits)}.")


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


def aligned_lines(source: Path, target: Path) -> Pairs:
    """Pairs of lines of two files.

    Raises:
        ValueError: if they differ in length, or one cannot be read; see `read_lines`.
    """
    sources, targets = read_lines(source), read_lines(target)
    count = 0
    for sentence in sources:
        translation = next(targets, None)
        if translation is None:
            longer = count + 1 + sum(1 for _ in sources)
            raise _unequal(source, longer, target, count)
        count += 1
        yield sentence, translation
    if rest := sum(1 for _ in targets):
        raise _unequal(source, count, target, count + rest)


def _unequal(source: Path, source_lines: int, target: Path, target_lines: int) -> ValueError:
    return ValueError(
        f"Source and target must have the same number of lines, got {source_lines} in {source} and {target_lines} in "
        f"{target}. Line n of the one must be the translation of line n of the other."
    )


def read_lines(path: Path | BinaryIO) -> Iterator[str]:
    """Lines of a file, gzipped if its name ends in ".gz", or of an open one.

    Split at line feeds only: real corpora hold U+0085 and U+2028 inside sentences. A byte order mark at the beginning
    is no text.
    """
    name = path if isinstance(path, Path) else path.name
    number = 0
    try:
        with _opened(path) as file:
            for line in file:
                number += 1
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
                yield text if number > 1 else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}, is not UTF-8 ({error}). Convert the file to UTF-8.") from error
    except FileNotFoundError as error:
        raise ValueError(f"the file {path} does not exist.") from error
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{name} cannot be read after line {number}: {error}. Is the file complete?") from error


def _opened(path: Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """A file to read; one that is open already stays so."""
    if not isinstance(path, Path):
        return nullcontext(path)
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
