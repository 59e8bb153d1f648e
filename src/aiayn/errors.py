"""What went wrong, in one line: the key, the value, the rule, the remedy. What is refused is one of `FORESEEN`."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from errno import ENOSPC
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import Container, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError, safe_load

from aiayn import schema

FORESEEN = (ValueError, OSError, YAMLError, HydraException, OmegaConfBaseException)  # what is refused is one of these
FULL_KEY = re.compile(r"full_key: (\S+)$")  # the last words of what Hydra says of an object that it cannot build


def unwrapped(error: BaseException) -> tuple[BaseException, str | None]:
    """What Hydra and OmegaConf wrapped, and the key at which it happened, where they name one.

    A package of an extra that is missing is one that is foreseen.
    """
    key = None
    while isinstance(error, HydraException | OmegaConfBaseException) and error.__cause__ is not None:
        if isinstance(error, OmegaConfBaseException):
            key = key or error.full_key
        elif found := FULL_KEY.search(str(error)):
            key = key or found[1]
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError):
        words = set(re.findall(r"\w+", error.name or str(error)))
        for extra, packages in extras().items():
            if missing := words & packages:
                return ValueError(f"{missing.pop()} is not installed; {installs(extra)} adds it."), key
    return error, key


def installs(extra: str) -> str:
    """The command that adds an extra."""
    return f"pip install '{schema.PROJECT}[{extra}]'"


def extras() -> dict[str, set[str]]:
    """The packages of each extra of ours, as they are imported."""
    project = tomllib.loads((schema.PROJECT / "pyproject.toml").read_text())["project"]
    return {
        extra: {re.split(r"[^\w-]", package)[0].replace("-", "_") for package in packages} - {project["name"]}
        for extra, packages in project["optional-dependencies"].items()
    }


def explain(error: BaseException) -> str:
    """One line for an error, with the key where it is known, and a suggestion for a mistyped name."""
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read as key=value; quote a value with = , ~ or a space: \"key='value'\"."
    error, key = unwrapped(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if group == "hydra/launcher" and name in extras():  # conf/ has the launcher, Hydra lacks its plugin
            return f"launcher={name} is not installed; {installs(name)} adds it."
        # Hydra names no options where the missing one is an item of a list.
        options = error.options or sorted(file.stem for file in (schema.PROJECT / "conf" / group).glob("*.yaml"))
        more = " auto takes the GPUs that there are." if group == "trainer" else ""
        return f"there is no {group}={name}{suggest(name, [option for option in options if option != 'schema'])}{more}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        if isinstance(error, ConfigKeyError | ConfigAttributeError) and isinstance(error.parent_node, Container):
            known = list(map(str, error.parent_node))
            above = error.full_key.removesuffix(str(error.key))
            others = elsewhere(error.parent_node, str(error.key))
            remedy = suggest(str(error.key), known, above=above, elsewhere=others) if known else ""
            remedy = remedy or f"; +{error.full_key}=... adds it."
            return f"there is no key {error.full_key}{remedy}"
        if isinstance(error, MissingMandatoryValue):
            return f"{error.full_key} is not set; give {error.full_key}=..."
        reason = str(error).split("\n")[0].removeprefix("ValueError raised while resolving interpolation: ")
        if reason.endswith("is not Optional"):
            reason = "null is no value for it; leave the key out, or give one."
        if re.match(r"\w+(\.\w+)+[ =]", reason):  # it begins with the key that was set, not with one that follows
            return reason
        return f"{error.full_key}: {reason}"
    text = " ".join(str(error).split())
    if found := re.match(r"Ambiguous value for argument '(.+?)=(.+?)'", text):
        key, value = found.groups()
        return (
            f"{key}={value} are several values: add -m for a run of each, name a list, [{value}], or quote it where "
            f"it is text, \"{key}='{value}'\"."
        )
    if (found := re.match(r"Could not override '([\w/]+)'\. No match in the defaults list", text)) and (
        tasks := tasks_with(found[1])
    ):
        return f"{found[1]}= belongs to {' and '.join(f'task={task}' for task in tasks)}; add the task."
    if isinstance(error, OSError) and error.errno == ENOSPC and not error.filename:  # files have their names
        return f"{text}: standard output"
    if inside := re.match(r"In '(.+?)': \w+ raised while composing config: (.+?) full_key: (\S+)", text):
        return f"{inside[1]}.yaml: {inside[3]}: {inside[2]}"
    if isinstance(error, FORESEEN):
        return text
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        return f"not enough memory: {text or 'the machine has no more'}"
    return f"{f'{key}: ' if key else ''}unexpected {type(error).__name__}: {text}"


def suggest(name: str, known: Iterable[str], *, above: str = "", elsewhere: Iterable[str] = ()) -> str:
    """The known name that was meant, with the keys `above` it, or those of the name `elsewhere`, or all of them."""
    known = list(known)
    near = [f"{above}{one}" for one in get_close_matches(name, known, n=1, cutoff=0.7)] or list(elsewhere)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}."


def elsewhere(part: Container, name: str) -> list[str]:
    """The keys of the whole config that end in a name, of those the highest."""

    def keys(config: Any, above: str) -> Iterator[str]:
        for key, value in config.items() if isinstance(config, dict) else ():
            yield f"{above}{key}"
            yield from keys(value, f"{above}{key}.")

    whole = OmegaConf.to_container(part._get_root())
    found = [key for key in keys(whole, "") if key.rpartition(".")[2] == name and not key.startswith("hydra.")]
    return [key for key in found if key.count(".") == min(key.count(".") for key in found)]


def tasks_with(group: str) -> list[str]:
    """The tasks that have a config group which others have not."""
    files = sorted((schema.PROJECT / "conf" / "task").glob("*.yaml"))
    defaults = {file.stem: safe_load(file.read_text()).get("defaults", []) for file in files}
    return [
        task for task, listed in defaults.items() if any(isinstance(of, dict) and f"/{group}" in of for of in listed)
    ]
