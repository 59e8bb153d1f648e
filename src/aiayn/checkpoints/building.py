"""A model from its config: built, or described by shapes alone; and which of its classes are ours."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from torch import nn
from torch.overrides import TorchFunctionMode

from aiayn.checkpoints.archive import line
from aiayn.data.tokenizer import PAD
from aiayn.model.layer import DecoderLayer, EncoderLayer, Stack
from aiayn.model.model import Model

NORMS = ("torch.nn.LayerNorm", "torch.nn.RMSNorm")  # which read no files; one stands at the end of a pre-norm stack
WHOLE = (Model, Stack, EncoderLayer, DecoderLayer)  # no parts of a model; a file could nest them, in any numbers


class UndescribedError(ValueError):
    """A part of a model looks at values while it is built, and shapes have none."""


class _Undrawn(TorchFunctionMode):
    """Leaves embeddings as they are made: to draw them without memory, torch loads its compiler, which takes 2 s."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return kwargs["tensor"] if function is nn.init.normal_ else function(*args, **(kwargs or {}))


def described(config: Mapping[str, Any], **given: Any) -> Model:
    """As `build`, on torch's meta device: shapes without values, and thus without memory.

    Raises:
        UndescribedError: if a part looks at values.
        ValueError: as `build`.
    """
    try:
        with torch.device("meta"), _Undrawn():
            return build(config, **given)
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        raise UndescribedError(f"the model cannot be described without values: {line(error)}") from error


def build(config: Mapping[str, Any], **given: Any) -> Model:
    """The model that a `model` config describes, untrained.

    Its `_target_` is called with those keys that it takes; the others are sizes that its parts refer to.

    Args:
        config: Resolved, plain containers.
        given: What the vocabularies decide (`Vocabularies.sizes`).

    Raises:
        ValueError: for illegal sizes, arguments that are missing, or a vocabulary of the source's own that the model
            has no place for.
    """
    kind = get_object(config["_target_"])
    try:
        signature = inspect.signature(kind)
    except ValueError as error:  # of a builtin
        raise ValueError(f"model._target_={config['_target_']} is no model: {error}.") from error
    known = signature.parameters
    if "source_vocab_size" in given and "source_vocab_size" not in known:
        raise ValueError(
            f"model._target_={config['_target_']} takes no source_vocab_size; leave data.shared_vocabulary=true."
        )
    arguments = {key: config[key] for key in known if config.get(key, "???") != "???"}
    parts = {key: instantiate(value) for key, value in arguments.items() if isinstance(value, Mapping)}
    given_all = {**arguments, **parts, **given, "pad_id": PAD}
    try:
        signature.bind(**given_all)
    except TypeError as error:
        rule = "a model is called with vocab_size, pad_id and the keys of model"
        raise ValueError(f"model._target_={config['_target_']}: {error}; {rule}.") from error
    for key, part in parts.items():
        _check_builder(f"model.{key}", part)
    model = kind(**given_all)
    if not isinstance(model, Model):
        raise ValueError(
            f"model._target_={config['_target_']} makes a {type(model).__name__}, no aiayn.model.model.Model."
        )
    return model


def _check_builder(key: str, part: Any) -> None:
    """Refuse with a ValueError a part that is no builder, or that cannot be built with the arguments it has."""
    if isinstance(part, nn.Module):
        raise ValueError(f"{key} must have _partial_: true, since it is built once for each use.")
    if isinstance(part, partial):
        for name, inner in part.keywords.items():
            _check_builder(f"{key}.{name}", inner)
        called = {"kind": "cross"} if key == "model.attention" else {}
        try:
            inspect.signature(part).bind(**called)
        except TypeError as error:
            rule = (
                "; attention is called with kind, and with what the YAML gives" if called else "; give it in the YAML"
            )
            raise ValueError(f"{key}._target_={part.func.__qualname__}: {error}{rule}.") from error


def is_model(target: str) -> bool:
    """Whether a dotted path names one of our models."""
    return (found := _own_module(target)) is not None and issubclass(found, Model)


def is_part(target: str) -> bool:
    """Whether a dotted path names one of our parts of a model, or one of torch's norms."""
    if target in NORMS:
        return True
    return (found := _own_module(target)) is not None and not issubclass(found, WHOLE)


def _own_module(target: str) -> type[nn.Module] | None:
    """The module that a dotted path names, if it was defined in `aiayn.model`; nothing else is imported for it."""
    if not target.startswith("aiayn.model."):
        return None
    try:
        found = get_object(target)
    except (ImportError, HydraException):  # there is no such thing
        return None
    module = isinstance(found, type) and issubclass(found, nn.Module) and found.__module__.startswith("aiayn.model.")
    return found if module else None
