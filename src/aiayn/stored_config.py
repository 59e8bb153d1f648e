"""The config that a checkpoint or a run folder keeps: data, which a stranger may have written.

Every reader takes it through `checked`, which gives each part that is used its type, its range and its default, or
refuses it with the key. What is not known here is kept as it is: plain values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from aiayn.schema import DataConfig, InferenceConfig, ModelConfig, TrainingConfig, check_ranges

MOST_VALUES, DEEPEST = 100_000, 40  # a run of ours has a few hundred values, four levels deep
LARGEST = 2**63  # whole numbers are below it


@dataclass
class StoredConfig:
    """What is read of a finished run's config. A part or a key that an older run lacks gets its default, if any."""

    name: str = ""
    seed: int | None = None
    objective: str = "bleu"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    paper: dict[str, float | None] = field(default_factory=dict)
    published: dict[str, float | None] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    logger: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = MISSING
    report: dict[str, Any] = MISSING


def checked(config: Any) -> dict[str, Any]:
    """A stored config with every part that readers use, of the right type and in range.

    Raises:
        ValueError: with the key, if a value is of another type or out of range; if it is no plain value, or one that
            OmegaConf would resolve (`${oc.env:HOME}`); or if there are too many of them.
    """
    _check_plain(config)
    found = _typed(config, OmegaConf.structured(StoredConfig))
    check_ranges(found)
    return found


def _check_plain(config: Any) -> None:
    """Refuse what is not made of plain values, or is too much of them: references may repeat a part without end."""
    waiting, seen = [("config", config, 0)], 1
    while waiting:
        key, value, depth = waiting.pop()
        if isinstance(value, dict | list | tuple):
            parts = list(value.items() if isinstance(value, dict) else enumerate(value))
            seen += len(parts)
            if seen > MOST_VALUES or depth == DEEPEST:
                raise ValueError(f"the config has more than {MOST_VALUES:,} values, or more than {DEEPEST} levels.")
            if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
                raise ValueError(f"{key} must have names as its keys.")
            waiting += [(f"{key}.{name}" if depth else str(name), part, depth + 1) for name, part in parts]
        elif isinstance(value, str):
            if "${" in value or value == "???":
                raise ValueError(f"{key}={value[:80]!r} is an interpolation, and those of finished runs are resolved.")
        elif not isinstance(value, int | float | None) or (isinstance(value, int) and abs(value) >= LARGEST):
            raise ValueError(f"{key} must be text, true, false, null, or a number below 2^63, got {_short(value)}.")


def _typed(values: Any, typed: DictConfig, key: str = "") -> dict[str, Any]:
    """The values with those that `typed`, a dataclass of the schema, knows in its types, and its defaults for others.

    Raises:
        ValueError: if a value is of another type; `key` is where they are, with a dot behind.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{key.rstrip('.') or 'the config'} must hold keys and values, got {_short(values)}.")
    kinds, found = get_type_hints(OmegaConf.get_type(typed)), dict(values)
    for name, kind in kinds.items():
        if is_dataclass(kind):
            found[name] = _typed(values.get(name, {}), typed[name], f"{key}{name}.")
            continue
        if name in values:
            if kind is Any:
                continue
            try:
                typed[name] = values[name]
            except OmegaConfBaseException as error:
                kind = kind.__name__ if kind in (int, float, str, bool) else kind
                raise ValueError(f"{key}{name} must be of the type {kind}, got {_short(values[name])}.") from error
        if not OmegaConf.is_missing(typed, name):
            found[name] = OmegaConf.to_object(typed[name]) if OmegaConf.is_config(typed[name]) else typed[name]
    return found


def _short(value: Any) -> str:
    """A value for a message; never much of it."""
    short = isinstance(value, float | None) or (isinstance(value, int) and abs(value) < LARGEST)
    return repr(value) if short else repr(value[:80]) if isinstance(value, str) else type(value).__name__
