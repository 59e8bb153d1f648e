"""Data sets of the Hugging Face hub: WMT 2014 (section 5.1) and others with its columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiayn.data.parallel_text import Pairs, check_split
from aiayn.files import digest


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
        check_split(split, self.splits())
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
