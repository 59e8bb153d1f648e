"""task=diff: in what two runs differ: settings, versions, code, data, steps, scores; of their result.json alone."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aiayn.identity import is_repeated, leaves
from aiayn.paths import path_of
from aiayn.runs.run import Run
from aiayn.terminal import Terminal

Difference = tuple[str, ...]  # the part, the key in it, and its value in a and in b; empty: it is not there
PARTS = ("model", "data", "training", "inference", "trainer")  # of a config, the first to be shown; the others follow
OWN_PATHS = ("run_dir", "outputs", "corpora")  # which other values repeat
# Which follows from the settings, and how fast it went.
LEFT_OUT = {"config", "composed", "config_hash", "command", "training_seconds", "tokens_per_second"}


def diff(cfg: DictConfig) -> None:
    """Print where the runs in the folders `a` and `b` differ; either may be an experiment, or a recipe, instead.

    Raises:
        ValueError: if one of them is none.
    """
    one, other = (read_run(cfg, key) for key in ("a", "b"))
    found = settings(one, other)
    if all("status" in run.result for run in (one, other)):  # an experiment has no outcome
        found += outcomes(one, other)
    terminal, table = Terminal(), Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for key, run in (("a", one), ("b", other)):
        state = f", {run.state}" if "status" in run.result else ""
        terminal.print(Text(f"{key}: {run.folder}{state}"), soft_wrap=True)
    if not found:
        terminal.print("Nothing differs: neither settings nor versions, code, data, steps and scores.")
        return
    for name in ("", "key", "a", "b"):
        table.add_column(name, overflow="fold")
    for part, group in groupby(found, key=itemgetter(0)):
        table.add_section()
        for number, (_, *cells) in enumerate(group):
            table.add_row(Text("" if number else part, "bold"), *map(Text, cells))
    terminal.print(table)
    if not settings(one, other):
        terminal.print("No setting differs.")


def read_run(cfg: DictConfig, key: str) -> Run:
    """The run, or the evaluation, that `a` or `b` names; or an experiment, or a recipe, which have no results.

    Raises:
        ValueError: if it is none.
    """
    name = str(cfg[key])
    if not Path(name).exists() and (choice := choice_of(name)):
        return Run(Path(choice), key, result={"config": config_of(choice)})
    run = Run.read(path_of(cfg, key).resolve(), row=key)
    if not run.result:
        raise ValueError(
            f"{key}={cfg[key]} is no run: it has no result.json that can be read; name a run's folder, an "
            "experiment or a recipe."
        )
    return run


def choice_of(name: str) -> str | None:
    """The override that chooses the experiment, or the recipe, of this name; None if there is none."""
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader() if hydra.is_initialized() else None
    groups = [group for group in ("experiment", "recipe") if loader and name in loader.get_group_options(group)]
    return f"{groups[0]}={name}" if groups else None


def config_of(choice: str) -> dict[str, Any]:
    """The config that a choice makes, with what else the command line says."""
    more = [one for one in HydraConfig.get().overrides.task if one.partition("=")[0] not in ("task", "a", "b")]
    composed = compose("config", [*more, choice])
    with open_dict(composed):
        del composed["trust"]  # the reader's, which no run keeps
        composed.update({key: f"/{key} of {choice}" for key in OWN_PATHS})  # it has none of its own
    config: Any = OmegaConf.to_container(composed, resolve=True)
    return config


def settings(one: Run, other: Run) -> list[Difference]:
    """The differences of the two resolved configs, by part; those of the experiment as a whole first."""
    mine, theirs = (flat(without_own_paths(run.result.get("config") or {})) for run in (one, other))

    found = [
        (*split_part(key), *pair)
        for key, *pair in differing(mine, theirs)
        if not all(is_repeated(key, values) for values in (mine, theirs)) and key.split(".")[0] not in OWN_PATHS
    ]
    order = ["experiment", *PARTS]
    return sorted(found, key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one[0]))


def split_part(key: str) -> tuple[str, str]:
    """A part of the config and the key in it; what is in none is the experiment's."""
    part, dot, rest = key.partition(".")
    return (part, rest) if dot else ("experiment", part)


def without_own_paths(config: Mapping[str, Any]) -> Any:
    """A config whose texts name the run's own folders, and not where those are."""
    text = json.dumps(config)
    for key in OWN_PATHS:
        if path := config.get(key):
            text = text.replace(json.dumps(path)[1:-1], f"${{{key}}}")
    return json.loads(text)


def outcomes(one: Run, other: Run) -> list[Difference]:
    """The differences of all else that the two have kept: versions, then code, data and steps, then scores."""
    found: list[Difference] = []
    mine, theirs = ({key: value for key, value in run.result.items() if key not in LEFT_OUT} for run in (one, other))
    parts = {"versions": ["versions"], "run": [key for key in {**mine, **theirs} if key not in ("versions", "scores")]}
    for part, keys in {**parts, "scores": ["scores"]}.items():
        both = [flat({key: values[key] for key in keys if key in values}) for values in (mine, theirs)]
        for key, *pair in lacking(both[0], both[1], differing(*both)):
            found.append((part, key.removeprefix(f"{part}.").removesuffix(".value"), *pair))
    return found


def lacking(
    mine: Mapping[str, str], theirs: Mapping[str, str], found: Iterable[tuple[str, str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Differences with one line for all that one side has below a key, and the other has not, as of a test set."""

    def missing(key: str) -> str:
        """The highest key of which one side has nothing; the key itself where both have it."""
        above = accumulate(key.split("."), "{}.{}".format)
        sides = [[f"{other}." for other in side] for side in (mine, theirs)]
        return next((one for one in above if not all(any(o.startswith(f"{one}.") for o in of) for of in sides)), key)

    for key, group in groupby(found, key=lambda one: missing(one[0])):
        lines = list(group)
        values = [line for line in lines if line[0] in (key, f"{key}.value")]  # a score, without its signature
        count = f"{len(lines)} values"
        yield values[0] if values else (key, count, "") if lines[0][0] in mine else (key, "", count)


def differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Keys whose values differ, with both."""
    for key in {**mine, **theirs}:
        pair = mine.get(key, ""), theirs.get(key, "")
        if pair[0] != pair[1]:
            yield key, *pair


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    """The leaves of nested mappings by dotted key, as text."""
    return {
        key: f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
        for key, value in leaves(values)
    }
