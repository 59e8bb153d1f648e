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
# Of configs of before the model's class was one of its keys: what it was, and where its parts and corpora are now.
MODEL = "aiayn.model.transformer.TranslationTransformer"
MOVED = {
    "aiayn.model.attention.MultiHeadAttention": "aiayn.model.attention.multi_head.MultiHeadAttention",
    "aiayn.model.feed_forward.FeedForward": "aiayn.model.feed_forward.relu.FeedForward",
    "aiayn.model.norm.PostNorm": "aiayn.model.norm.post.PostNorm",
    "aiayn.model.position.SinusoidalPosition": "aiayn.model.position.sinusoidal.SinusoidalPosition",
    "aiayn.model.position.LearnedPosition": "aiayn.model.position.learned.LearnedPosition",
    "aiayn.data.numbers.Numbers": "aiayn.data.corpora.numbers.Numbers",
    "aiayn.data.parallel_text.TextFiles": "aiayn.data.corpora.text.TextFiles",
    "aiayn.data.parallel_text.HubText": "aiayn.data.corpora.hub.HubText",
    "aiayn.data.parallel_text.multi30k": "aiayn.data.corpora.multi30k.multi30k",
}

# Of runs that are older than the key.
TRANSLATION = {"_target_": "aiayn.problems.translation.Translation", "_partial_": True}


@dataclass
class StoredConfig:
    """What is read of a finished run's config. A part or a key that an older run lacks gets its default, if any."""

    name: str = ""
    seed: int | None = None
    objective: str = "bleu"
    problem: dict[str, Any] = field(default_factory=lambda: dict(TRANSLATION))
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    paper: dict[str, float | None] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
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
    found = _typed(renewed(config), OmegaConf.structured(StoredConfig))
    check_ranges(found)
    return found


def is_older(config: Any) -> bool:
    """Whether a config is of before the model's class was one of its keys, when attention had one map."""
    model = config.get("model") if isinstance(config, dict) else None
    return isinstance(model, dict) and "attention" in model and "_target_" not in model


def renewed(config: Any) -> Any:
    """A config that `is_older`, with the names of today."""
    if not is_older(config):
        return config
    model = config["model"]
    sizes = {"encoder_layers": "layers", "decoder_layers": "layers", "kv_heads": "heads"}
    added = {name: model[key] for name, key in sizes.items() if key in model}
    return _moved({**config, "model": {**model, "_target_": MODEL, **added}})


def _moved(value: Any) -> Any:
    """With the classes' names of today."""
    if isinstance(value, dict):
        return {key: _moved(part) for key, part in value.items()}
    return MOVED.get(value, value) if isinstance(value, str) else value


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
