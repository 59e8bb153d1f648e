"""Multi30k (Elliott et al. 2016): image captions."""

import logging
from pathlib import Path

from aiayn.data.corpora.hub import HubText
from aiayn.data.corpora.text import TextFiles
from aiayn.data.parallel_text import ParallelText

logger = logging.getLogger(__name__)


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
        test_set: Which test set becomes "test"; the others of the folder keep their names. The hub's copy has
            test_2016_flickr only.
        revision: Commit of the hub's copy.
    """
    if path is not None and (folder := Path(path)).is_dir():

        def files(name: str) -> dict[str, Path]:
            return {
                "source": folder / f"{name}.{source_language}.gz",
                "target": folder / f"{name}.{target_language}.gz",
            }

        found = {file.name.partition(".")[0] for file in folder.glob(f"test_*.{source_language}.gz")}
        others = sorted(name for name in found - {test_set} if files(name)["target"].is_file())
        return TextFiles(
            train=files("train"), dev=files("val"), test=files(test_set), tests={name: files(name) for name in others}
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
