"""What the rows of a table are called: by what differs between them, and not by all that the command line says.

The full name of a row is that of its folder (`identity.row`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from aiayn.identity import leaves, settings

LONGEST = 24  # characters of a value


def names(configs: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """The shortest name that tells each row from the others: `table3_a_h1`, or `heads=4, seed 2`.

    An experiment's name comes first where there are several; then those settings that tell rows of one name apart, and
    none that follow from them, as d_k does from heads. Where nothing differs, the experiment's name is all.

    Args:
        configs: Of the rows, resolved; empty where one could not be.
        folders: The full names; what differs in it is the name of a row whose config does not tell it apart.
    """
    rows = [{**settings(config), "seed": config.get("seed")} if config else {} for config in configs]
    keys = telling([row for row in rows if row])
    told = [dict(leaves(config)) for config in configs]
    shown = {key: labels(key, [of_row.get(key) for of_row in told]) for key in keys}
    heads = {key: f"{label(key, {name for row in rows for name in row})}=" for key in keys}
    heads |= {"name": "", "seed": "seed "}
    found = []
    for number, config in enumerate(configs):
        parts = [heads[key] + shown[key][number] for key in keys]
        found.append(", ".join(parts) if parts else str(config.get("name") or ""))
    alike = Counter(found)
    full = in_what_differs(folders)
    return [
        name if config and name and alike[name] == 1 else folder
        for name, config, folder in zip(found, configs, full, strict=True)
    ]


def telling(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that together tell the rows apart: each tells some apart that are alike in those before it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    chosen: list[str] = []
    groups = [""] * len(rows)
    # What others follow from is higher in the config.
    for key in sorted(keys, key=lambda key: (key == "seed", key != "name", key.count("."))):
        split = [f"{group}, {row.get(key)!r}" for group, row in zip(groups, rows, strict=True)]
        if len(set(split)) > len(set(groups)):
            chosen.append(key)
            groups = split
    return chosen


def label(key: str, others: set[str]) -> str:
    """A key by its last part, or by more of them where other keys end alike: `heads`; a part of a model by its own."""

    def parts(name: str) -> list[str]:
        found = name.split(".")
        return found[:-1] if len(found) > 1 and found[-1] in ("_target_", "name") else found

    mine = parts(key)
    for count in range(1, len(mine)):
        if not any(parts(other)[-count:] == mine[-count:] for other in others if other != key):
            return ".".join(mine[-count:])
    return ".".join(mine)


def labels(key: str, values: Sequence[Any]) -> list[str]:
    """The values of a key in few characters, unless that would make different ones the same."""
    paths = [value for value in values if isinstance(value, str) and value.startswith("/")]
    ends = dict(zip(paths, apart([PurePath(path).parts for path in paths]), strict=True))
    whole = [text(value) for value in values]
    short = [ends.get(value, of) if isinstance(value, str) else of for value, of in zip(values, whole, strict=True)]
    if key.endswith("_target_"):
        short = [name.rpartition(".")[2] for name in short]
    short = [name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}...{name[-LONGEST // 3 :]}" for name in short]
    return short if len(set(short)) == len(set(whole)) else whole


def text(value: Any) -> str:
    """A value as one would give it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def in_what_differs(folders: Sequence[str]) -> list[str]:
    """Names of folders without the overrides that all of them have."""
    parts = [folder.split(",") for folder in folders]
    common = set(parts[0]).intersection(*parts) if parts else set()
    return [",".join(part for part in of if part not in common) or ",".join(of) for of in parts]


def apart(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Paths without the parts that all of them begin with, and end with."""

    def alike(paths: Sequence[tuple[str, ...]]) -> int:
        return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))

    start, end = alike(paths), alike([path[::-1] for path in paths])
    return ["/".join(path[start : len(path) - end]) or path[-1] for path in paths]
