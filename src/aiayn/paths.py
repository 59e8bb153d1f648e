"""Which keys of a config hold a path, and what such a key may say; asked before torch is imported."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from aiayn.files import absolute

SPLITS, SIDES = ("train", "dev", "test"), ("source", "target")
# Keys that hold a path, or a list of paths, where the config has them ...
PATHS = (
    *("outputs", "corpora", "run_dir", "data.path", "data.corpus.path", "data.tokenizer", "training.initialize"),
    *(f"data.{split}.{side}" for split in (*SPLITS, *(f"corpus.{split}" for split in SPLITS)) for side in SIDES),
    *(f"data.{trees}.{split}" for trees in ("trees", "corpus.files") for split in SPLITS),
    *("checkpoint", "checkpoints", "run", "input", "output", "folder", "against", "plan.output"),
    *("hypotheses", "references", "source", "target", "a", "b"),
    *("metrics.evalb.parameters", "metrics.evalb_40.parameters"),
)
# ... but for what is none in these tasks, or may be none.
NO_PATHS = {"compare": {"checkpoint"}, "attention": {"target"}, "diff": {"a", "b"}}
# What is read, so that it has to be there; and what training and preparing read, which need train and dev.
READ = {
    *("checkpoint", "checkpoints", "run", "input", "hypotheses", "references", "source", "target", "a", "b"),
    *("metrics.evalb.parameters", "metrics.evalb_40.parameters"),
}
NEEDED = {f"data.corpus.{split}.{side}" for split in SPLITS[:2] for side in SIDES}
MIXED = re.compile(r"data\.mixture\..*\.corpus\.(train\.(source|target)|files\.train)")
TO_LEARN_FROM = {
    *(*NEEDED, *(f"data.corpus.test.{side}" for side in SIDES), *(f"data.trees.{split}" for split in SPLITS)),
    *("data.tokenizer", "training.initialize"),
}


def paths_of(cfg: DictConfig) -> Iterator[tuple[str, DictConfig, str]]:
    """The keys that hold a path, paths, or null, each with the part of the config that it is in, and its name there."""
    tests = OmegaConf.select(cfg, "data.tests") or {}
    spared = NO_PATHS.get(str(cfg.get("task")).removeprefix("aiayn.commands.").partition(".")[0], ())
    keys = [key for key in PATHS if key not in spared]
    yield from _set(cfg, [*keys, *(f"data.tests.{name}.{side}" for name in tests for side in SIDES)])
    for name, mixed in (OmegaConf.select(cfg, "data.mixture") or {}).items():
        if isinstance(mixed, DictConfig):  # what is none is refused elsewhere
            found = _set(mixed, [key.removeprefix("data.") for key in PATHS if key.startswith("data.corpus.")])
            yield from ((f"data.mixture.{name}.{key}", part, last) for key, part, last in found)


def _set(cfg: DictConfig, keys: Iterable[str]) -> Iterator[tuple[str, DictConfig, str]]:
    """Those of the keys that are there and set."""
    for key in keys:
        above, _, name = key.rpartition(".")
        part = OmegaConf.select(cfg, above) if above else cfg
        if isinstance(part, DictConfig) and name in part and not OmegaConf.is_missing(part, name):
            yield key, part, name


def make_absolute(cfg: DictConfig) -> None:
    """Write all paths of a composed config from the root, `~` being home; so a run finds its files from any folder.

    Raises:
        ValueError: if there is no such home.
    """
    for _, part, name in paths_of(cfg):
        value = part[name]
        if isinstance(value, ListConfig):
            part[name] = [_from_root(item) for item in value]
        elif value != (path := _from_root(value)):
            part[name] = path


def _from_root(value: Any) -> Any:
    """A path's text; what can be none is left to those who refuse it."""
    names_something = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return str(absolute(str(value))) if names_something else value


def path_of(cfg: Mapping[str, Any], key: str) -> Path:
    """The path that a task's own key gives; `5` is a name too.

    Raises:
        ValueError: if it is no name.
    """
    value = cfg[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise ValueError(f"{key} must be the path of a file or folder, got {value!r}.")
    return Path(str(value))


def output_of(cfg: Mapping[str, Any]) -> Path | None:
    """The file that `output` names, which is to be written; None for null. Asked before the work that it is to keep.

    Raises:
        ValueError: if it is no name, a folder, or below a file.
    """
    if cfg["output"] is None:
        return None
    path = path_of(cfg, "output")
    if path.is_dir() or any(above.exists() and not above.is_dir() for above in path.parents):
        raise ValueError(f"output={path} cannot be a file: it is a folder, or below a file; give another name.")
    return path
