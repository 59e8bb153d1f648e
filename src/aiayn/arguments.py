"""What a config gives to the classes and functions that it names: their arguments, of their types.

Hydra calls them in the middle of a run; a wrong argument shows there, or later, in words about something else.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from math import isfinite
from pydoc import ErrorDuringImport, locate
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from aiayn.schema import check_built, check_ranges

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}


def check_groups(cfg: DictConfig, *groups: str) -> None:
    """Refuse what a task that is no run is given in these groups: ranges, what is built, and its arguments.

    Raises:
        ValueError: with the key and the value.
    """
    given = {group: OmegaConf.to_container(cfg[group], resolve=True) for group in groups if group in cfg}
    check_ranges(given)
    check_built(given)
    check_arguments(given)


def check_arguments(config: Any, key: str = "") -> None:
    """Refuse arguments that are not there, and values of another type than the signatures have, at any depth.

    Args:
        config: Plain containers.
        key: Where they are in the whole config.

    Raises:
        ValueError: with the key and the value.
    """
    if not isinstance(config, Mapping):
        return
    for name, value in config.items():
        check_arguments(value, f"{key}.{name}" if key else str(name))
    if "_target_" not in config:
        return
    try:
        target = locate(str(config["_target_"]))
    except ErrorDuringImport as error:
        reason = " ".join(str(error.value).split()) or type(error.value).__name__
        raise ValueError(f"{key}._target_={config['_target_']} fails when it is imported: {reason}") from error
    if not callable(target):
        raise ValueError(f"{key}._target_={config['_target_']} is no class or function that can be imported.")
    taken, hints = inspect.signature(target).parameters, {}
    with suppress(NameError):  # of what is imported for type checkers alone
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    for name, value in config.items():
        if name.startswith("_"):  # a word to Hydra
            continue
        if name not in taken and not takes_all and key != "model":  # whose other keys are sizes for its parts
            near = get_close_matches(name, taken, n=1) or [", ".join(taken)]
            raise ValueError(f"{key}.{name}: {config['_target_']} takes no {name}; it takes {near[0]}.")
        if not fits(value, hints.get(name, Any)):
            raise ValueError(f"{key}.{name} must be {in_words(hints[name])}, got {value!r}.")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of a config can be of this type; what a config cannot show is taken to fit."""
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and isfinite(value)
    return type(value) is hint if hint in WORDS else True


def in_words(hint: Any) -> str:
    """A type as an error says it."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return " or ".join(WORDS.get(part, getattr(part, "__name__", str(part))) for part in parts)
