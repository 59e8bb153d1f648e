"""One self-contained file: weights, resolved config and tokenizers, so that translating needs nothing else.

A checkpoint is data. It holds plain containers and tensors, is read with `weights_only=True`, and what it names is ours
or of a package that the reader trusts (`trust.py`), so opening a stranger's file runs no code that the file chose. A
file is complete or it is not there: it is written under a temporary name beside its place and renamed. A folder that
`export.py` has written with safetensors is read as such a file is.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from aiayn.checkpoints import archive, older
from aiayn.checkpoints.archive import line
from aiayn.checkpoints.building import UndescribedError, build, described, is_model, is_part
from aiayn.data.tokenizer import NAMES, Vocabularies, models_hash
from aiayn.files import replacing
from aiayn.stored_config import checked, is_older
from aiayn.trust import check_named

STATES = ("state_dict", "current_model_state")  # the latter are what training goes on from, beside their moving average
PREFIX = "model."  # of the weights' names: the LightningModule keeps the model under this attribute
# What a checkpoint holds besides Lightning's own entries, and `target_tokenizer`, where each side has its own. The hash
# is that of the vocabularies.
KINDS: dict[str, type] = {
    "state_dict": dict,
    "config": dict,
    "tokenizer": Tensor,
    "tokenizer_hash": str,
    "global_step": int,
}
# Files of a folder that `export.py` writes, its weights' by format; and what its manifest holds, with the tokenizer.
MANIFEST, WEIGHTS = "aiayn.json", "model.safetensors"
FORMATS = {"safetensors": WEIGHTS, "ctranslate2": "model.bin"}
MANIFEST_KINDS = {"format": str, **{key: kind for key, kind in KINDS.items() if key != "state_dict"}}


@dataclass(frozen=True)
class Checkpoint:
    """What evaluation and translation need.

    Attributes:
        weights: the model's state dict.
        config: the run's resolved config, plain containers.
        vocabularies: those the model was trained with.
        step: optimizer steps behind it.
    """

    weights: dict[str, Tensor]
    config: dict[str, Any]
    vocabularies: Vocabularies
    step: int

    def model(self, accelerator: str = "cpu", *, trust: Collection[str] = ()) -> Any:
        """The model (`Model`) with these weights, in evaluation mode.

        Args:
            accelerator: As `trainer.accelerator`; "auto" takes the GPU when there is one.
            trust: The reader's packages, whose code the file may name besides ours (`trust.check_named`).

        Raises:
            ValueError: if the config names what is not trusted, or the weights do not fit it.
        """
        has_gpu = torch.cuda.is_available()
        if accelerator not in ("auto", "cpu", "gpu", "cuda", "mps", "tpu"):
            raise ValueError(f"trainer.accelerator must be auto, cpu, gpu, cuda, mps or tpu, got {accelerator}.")
        if accelerator in ("gpu", "cuda") and not has_gpu:
            raise ValueError(f"trainer.accelerator={accelerator}, but torch sees no GPU; give auto or cpu.")
        parts = dict(self.config["model"])
        whole = {"_target_": parts.pop("_target_", None)}
        check_named(whole, ours=is_model, trust=trust, what="the model config")
        check_named(parts, ours=is_part, trust=trust, what="the model config")
        self._check_fit()
        model: Any = build(self.config["model"], **self.vocabularies.sizes)
        model.load_state_dict(self.weights)
        return model.eval().to("cuda" if has_gpu and accelerator in ("auto", "gpu", "cuda") else "cpu")

    def _check_fit(self) -> None:
        """Refuse a config of other sizes than the weights have, before memory is taken for them."""
        for key in ("encoder_layers", "decoder_layers"):
            if (layers := self.config["model"].get(key, 0)) > len(self.weights):
                raise ValueError(
                    f"the checkpoint's weights do not fit its config: model.{key}={layers}, and there are "
                    f"{len(self.weights)} tensors."
                )
        try:
            shapes: Any = described(self.config["model"], **self.vocabularies.sizes)
        except UndescribedError:  # by a part that the reader trusts; its sizes show when it is built
            return
        except ValueError:
            raise
        except Exception as error:  # the values may be any that parts can be called with
            raise ValueError(f"the checkpoint's config describes no model of ours: {line(error)}") from error
        try:
            # A plain dict: torch notes `assign` in the metadata of a module's own, and would assign ever after.
            shapes.load_state_dict(dict(self.weights), assign=True)
        except RuntimeError as error:
            raise ValueError(f"the checkpoint's weights do not fit its config: {line(error)}") from error


def contents(config: dict[str, Any], vocabularies: Vocabularies) -> dict[str, Any]:
    """What a checkpoint holds besides weights and training state. The tokenizers' models travel as byte tensors."""
    models = {name: _as_tensor(model) for name, model in vocabularies.models.items()}
    return {"config": config, "tokenizer_hash": vocabularies.hash, **models}


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        OSError: if it cannot be written, a full disk for one; an older file of that name is then untouched.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"could not write the checkpoint {path}: it is no file; name another output.")
    try:
        with replacing(path) as place, place.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch's archive writer turns a failed write into a RuntimeError
        reason = error if isinstance(error, OSError) else error.__context__ or error
        raise OSError(f"could not write the checkpoint {path}: {reason}; earlier ones are untouched.") from error


def located(path: Path) -> Path:
    """The checkpoint that a path means: of a run's folder its averaged one; an exported folder is one itself.

    Raises:
        ValueError: if it is another folder.
    """
    if not path.is_dir() or (path / MANIFEST).is_file():
        return path
    averaged = path / "checkpoints" / "averaged.ckpt"
    if not averaged.is_file():
        others = sorted((path / "checkpoints").glob("*.ckpt"))
        remedy = f"name a file, as {others[-1]}" if others else "name a run's folder, or a file"
        raise ValueError(f"checkpoint {path} is a folder without checkpoints/averaged.ckpt; {remedy}.")
    return averaged


def read_raw(path: Path) -> dict[str, Any]:
    """The whole content of a checkpoint file, or of a folder exported with safetensors, on the CPU.

    Raises:
        ValueError: if it is missing, damaged, or not a checkpoint of this project.
        OSError: if the system does not let it be read.
    """
    path = located(path)
    if not path.exists():
        raise ValueError(f"checkpoint {path} does not exist.")
    if not path.is_dir():
        return _renewed(_checked(archive.load(path), path, KINDS, size=path.stat().st_size), path)
    return read_exported(path, kind="safetensors")


def weights_file(path: Path) -> Path:
    """The file that a checkpoint's weights are in: itself, or that of an exported folder."""
    return path / WEIGHTS if path.is_dir() else path


def is_exported(path: Path, *, kind: str) -> bool:
    """Whether a path is a folder of `export.py` in the format `kind`."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        return json.loads((path / MANIFEST).read_text(encoding="utf-8"))["format"] == kind
    return False


def read_exported(folder: Path, *, kind: str) -> dict[str, Any]:
    """What a folder of `export.py` holds: its manifest, the tokenizers as in `contents`, and weights of safetensors.

    Raises:
        ValueError: if it is incomplete, damaged, or was exported in another format than `kind`.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {name: folder / f"{name}.model" for name in NAMES}
        models = {name: file.read_bytes() for name, file in files.items() if name == NAMES[0] or file.exists()}
        tokenizers = {name: _as_tensor(model) for name, model in models.items()}
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint {folder} is not a whole folder of task=export: {line(error)}.") from error
    content = {**content, **tokenizers} if isinstance(content, dict) else {}
    content = _checked(content, folder, MANIFEST_KINDS, size=max(map(len, models.values())))
    if content["format"] != kind:
        raise ValueError(
            f"checkpoint {folder} was exported with format={content['format']}, and {kind} is needed; "
            "task=translate and task=serve take ctranslate2, everything else takes safetensors."
        )
    file = folder / FORMATS[kind]
    if not file.is_file():
        raise ValueError(f"checkpoint {folder} is not a whole folder of task=export: {file.name} is missing.")
    if "weights_hash" in content and weights_hash(file) != content["weights_hash"]:  # older exports have none
        raise ValueError(f"checkpoint {folder} is damaged: its {file.name} does not have the stored hash.")
    if kind == "safetensors":
        try:
            weights = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"checkpoint {folder} cannot be read: {file.name}: {line(error)}.") from error
        content["state_dict"] = {f"{PREFIX}{name}": value for name, value in weights.items()}
    return _renewed(content, folder)


def weights_hash(file: Path) -> str:
    """SHA-256 of the weights of an exported folder, in hexadecimal: neither of the formats has checksums."""
    with file.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def _checked(content: Any, path: Path, kinds: Mapping[str, type], *, size: int) -> dict[str, Any]:
    """The content, if it is a checkpoint's.

    Args:
        content: What was read.
        path: Whose content it is.
        kinds: What it must hold.
        size: Of the file, in bytes; what its tensors take in memory is no more.
    """
    content = content if isinstance(content, dict) else {}
    wrong = [key for key, kind in kinds.items() if not isinstance(content.get(key), kind)]
    if not wrong and not isinstance(content["config"].get("model"), dict):
        wrong.append("model")
    if not wrong:
        named = {key: content[key] for key in STATES if key in content}
        wrong = [f"{key} of numbers" for key, tensors in named.items() if not archive.plain_tensors(tensors, size=size)]
        models = {name: content[name] for name in NAMES if name in content}
        wrong += [f"{name} of bytes" for name, model in models.items() if not _is_bytes(model, size=size)]
    if wrong:
        raise ValueError(f"checkpoint {path} was not written by aiayn: it holds no {', '.join(wrong)}.")
    return content


def _renewed(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content with its config as `stored_config.checked` gives it, and the weights as they are named today."""
    before = is_older(content["config"])
    try:
        content = {**content, "config": checked(content["config"])}
    except ValueError as error:
        raise ValueError(f"checkpoint {path} has a config that is not aiayn's: {error}") from error
    if not before:
        return content
    states = {key: older.renewed(content[key], content["config"]["model"]) for key in STATES if key in content}
    return {**content, **states}


def _is_bytes(value: Any, *, size: int) -> bool:
    return archive.plain_tensors({"": value}, size=size) and value.dtype == torch.uint8


def stored_vocabularies(content: Mapping[str, Any], path: Path) -> Vocabularies:
    """The tokenizers of a checkpoint's content.

    Raises:
        ValueError: if one is damaged, or belongs to another checkpoint.
    """
    models = {name: content[name].numpy().tobytes() for name in NAMES if name in content}
    if models_hash(models) != content["tokenizer_hash"]:
        raise ValueError(f"checkpoint {path} is damaged: its tokenizer does not have the stored hash.")
    return Vocabularies.of(models)


def read(path: Path) -> Checkpoint:
    """Open a checkpoint for evaluation or translation.

    Raises:
        ValueError: as `read_raw`, or if a tokenizer inside is damaged.
    """
    return unpacked(read_raw(path), path)


def unpacked(content: dict[str, Any], path: Path) -> Checkpoint:
    """What evaluation and translation need of a checkpoint's content.

    Raises:
        ValueError: if a tokenizer inside is damaged; `path` is whose content it says it is.
    """
    vocabularies = stored_vocabularies(content, path)
    named = {str(name): value for name, value in content["state_dict"].items()}
    weights = {name.removeprefix(PREFIX): value for name, value in named.items() if name.startswith(PREFIX)}
    return Checkpoint(weights, content["config"], vocabularies, content["global_step"])
