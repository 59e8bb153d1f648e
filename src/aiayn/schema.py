"""Types of the config keys, so that a mistyped key or value is refused when the config is composed.

Imported by `run.py` before anything else; hence no torch here. The values, and what they mean, are in conf/.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf

from aiayn.files import absolute, new_folder
from aiayn.identity import row

PROJECT = Path(__file__).parents[2]


@dataclass
class ModelConfig:
    """Sizes with the paper's symbols, and the parts that `Transformer` is built from."""

    name: str = MISSING
    layers: int = MISSING
    d_model: int = MISSING
    d_ff: int = MISSING
    heads: int = MISSING
    d_k: int = MISSING
    d_v: int = MISSING
    dropout: float = MISSING
    attention: Any = MISSING
    position: Any = MISSING
    feed_forward: Any = MISSING
    norm: Any = MISSING


@dataclass
class Files:
    """Line-aligned text files: a path or a list of paths for each side."""

    source: Any = None
    target: Any = None


@dataclass
class CleaningConfig:
    """Which training pairs are kept; see `aiayn.data.cleaning.Cleaning`."""

    _target_: str = "aiayn.data.cleaning.Cleaning"
    max_length: int | None = 250  # tokens of either side; null: no limit
    max_ratio: float | None = 4.0  # of the longer side to the shorter one, in tokens; null: no limit
    held_out: bool = True  # remove dev's and test's sentences from train
    duplicates: bool = True  # remove repeated pairs


@dataclass
class DataConfig:
    """A corpus, its tokenizer and its batches."""

    name: str = MISSING
    source_language: str | None = None
    target_language: str | None = None
    corpus: Any = MISSING
    path: str | None = None  # of a local copy, for corpora that are downloaded otherwise
    test_set: str | None = None  # for corpora with several
    train: Files = field(default_factory=Files)
    dev: Files = field(default_factory=Files)
    test: Files = field(default_factory=Files)
    split: str = "test"  # what task=evaluate decodes
    vocab_size: int = MISSING
    character_coverage: float = 0.9999  # share of the characters that get a piece of their own
    byte_fallback: bool = False  # spell characters without a piece in bytes (256 ids) instead of losing them as UNK
    tokenizer_sample: int = 5_000_000  # sentences that the tokenizer is trained on, at most
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    tokens_per_batch: int = MISSING  # source and target tokens of one optimizer step over all devices, at most
    tokens_per_device: int | None = 8192  # of one micro-batch; bounds memory, never changes the experiment
    prepare_workers: int | None = None  # threads that encode; null: one for each core
    loader_workers: int = 0  # processes that make batches


@dataclass
class TrainingConfig:
    """Section 5."""

    max_steps: int = MISSING
    warmup_steps: int = MISSING
    learning_rate_scale: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    label_smoothing: float = MISSING
    checkpoint_minutes: float | None = None
    checkpoint_steps: int | None = None
    keep_checkpoints: int = MISSING
    validate_steps: int = MISSING
    log_steps: int = MISSING
    tokens_per_batch: int = MISSING  # for corpora that leave it to the recipe


@dataclass
class InferenceConfig:
    """Section 6.1."""

    beam: int = MISSING
    alpha: float = MISSING
    max_extra_length: int = MISSING
    tokens_per_batch: int = MISSING


@dataclass
class PaperConfig:
    """What the paper reports for an experiment; null where it reports nothing."""

    perplexity: float | None = None  # per word piece
    bleu: float | None = None
    parameters: float | None = None
    flops: float | None = None  # of training


def heads_divide(d_model: int, heads: int) -> int:
    """`d_model / heads`, the default of `d_k` and `d_v` (section 3.2.2).

    Raises:
        ValueError: if heads does not divide d_model.
    """
    if heads < 1 or d_model % heads:
        raise ValueError(
            f"model.heads must divide model.d_model, got heads={heads}, d_model={d_model}; "
            f"choose another number of heads, or set model.d_k and model.d_v."
        )
    return d_model // heads


# Least values, and values that are already too much.
RANGES: dict[str, tuple[float, float]] = {
    "data.tokens_per_batch": (1, inf),
    "data.loader_workers": (0, inf),
    "model.dropout": (0, 1),
    "training.max_steps": (1, inf),
    "training.warmup_steps": (1, inf),
    "training.learning_rate_scale": (0, inf),
    "training.eps": (0, inf),
    "training.checkpoint_minutes": (0, inf),
    "training.checkpoint_steps": (0, inf),
    "training.label_smoothing": (0, 1),
    "training.validate_steps": (1, inf),
    "training.log_steps": (1, inf),
    "training.tokens_per_batch": (1, inf),
    "training.keep_checkpoints": (1, inf),
    "inference.beam": (1, inf),
    "inference.alpha": (0, inf),
    "inference.max_extra_length": (0, inf),
    "inference.tokens_per_batch": (1, inf),
}


def check(config: dict[str, Any]) -> None:
    """Refuse values that would fail later, in the middle of a run.

    Raises:
        ValueError: with the key, the value and the range.
    """
    check_ranges(config)
    betas, seed = config["training"]["betas"], config["seed"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"training.betas must be two numbers from 0 to below 1, got {betas}.")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed}.")
    if not isinstance(config.get("force", False), bool):
        raise ValueError(f"force must be true or false, got {config['force']}.")
    if "bleu" not in (chosen := config.get("metrics", {})):
        names = ", ".join(chosen) or "none"
        raise ValueError(f"metrics must have bleu, which tables and sweeps are made of, got {names}; add it.")


def check_ranges(config: Mapping[str, Any]) -> None:
    """Refuse numbers that are out of range, in the groups that are given.

    Raises:
        ValueError: with the key, the value and the range.
    """
    for key, (least, too_much) in RANGES.items():
        group, name = key.split(".")
        if group not in config or (value := config[group][name]) is None:
            continue
        if not isinstance(value, int | float) or not least <= value < too_much:
            below = "" if too_much == inf else f" and below {too_much}"
            raise ValueError(f"{key} must be at least {least}{below}, got {value}.")


def path_of(cfg: Mapping[str, Any], key: str) -> Path:
    """The path that a task's own key gives; `5` is a name too.

    Raises:
        ValueError: if it is no name.
    """
    value = cfg[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise ValueError(f"{key} must be the path of a file or folder, got {value!r}.")
    return Path(str(value))


def count_of(cfg: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    """The whole number that a task's own key gives.

    Raises:
        ValueError: if it is none, or less than `least`.
    """
    value = cfg[key]
    if type(value) is not int or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, got {value!r}.")
    return value


def scaled(size: str, value: int, *, _root_: Any) -> int:
    """The paper's value of a size at the chosen scale: `${width:512}` is 512, or 128 with `scale=tiny`.

    Raises:
        ValueError: if the scale does not divide it.
    """
    divisor = _root_.scale[size]
    if not isinstance(divisor, int) or divisor < 1:
        raise ValueError(f"scale.{size} must be a whole number of at least 1, got {divisor}.")
    if value % divisor:
        raise ValueError(f"scale.{size}={divisor} does not divide {value}; choose another scale.{size}.")
    return value // divisor


# Keys that hold a path, or a list of paths, where the config has them ...
PATHS = (
    *("outputs", "corpora", "run_dir", "data.path", "data.corpus.path", "data.tokenizer", "training.initialize"),
    *(
        f"{group}.{split}.{side}"
        for group in ("data", "data.corpus")
        for split in ("train", "dev", "test")
        for side in ("source", "target")
    ),
    *("checkpoint", "checkpoints", "run", "input", "output", "folder", "plan.output"),
    *("hypotheses", "references", "source", "target", "a", "b"),
)
# ... but for what is none in these tasks.
NO_PATHS = {"aiayn.applications.compare.compare": {"checkpoint"}, "aiayn.applications.attention.attention": {"target"}}


def make_absolute(cfg: DictConfig) -> None:
    """Write all paths of a composed config from the root, `~` being home; so a run finds its files from any folder.

    Raises:
        ValueError: if there is no such home.
    """
    for key in PATHS:
        if key in NO_PATHS.get(str(cfg.get("task")), ()):
            continue
        above, _, name = key.rpartition(".")
        part = OmegaConf.select(cfg, above) if above else cfg
        if not isinstance(part, DictConfig) or name not in part or OmegaConf.is_missing(part, name):
            continue
        value = part[name]
        if isinstance(value, ListConfig):
            part[name] = [_from_root(item) for item in value]
        elif value != (path := _from_root(value)):
            part[name] = path


def _from_root(value: Any) -> Any:
    """A path's text; what can be none is left to those who refuse it."""
    names_something = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return str(absolute(str(value))) if names_something else value


@cache
def run_folder(path: str | None, now: str) -> str:
    """The folder of a single run. One that is named by the time is made here, so that it is this process's alone."""
    place = absolute(str(path or "."))
    if place.name == now:
        with suppress(OSError):  # Hydra makes it too, and says why it cannot
            place = new_folder(place)
    return str(place)


def register() -> None:
    """Make the schema and the resolvers known to Hydra and OmegaConf."""
    store = ConfigStore.instance()
    for group, schema in (
        ("model", ModelConfig),
        ("data", DataConfig),
        ("training", TrainingConfig),
        ("inference", InferenceConfig),
        ("paper", PaperConfig),
    ):
        store.store(group=group, name="schema", node=schema)
    OmegaConf.register_new_resolver("heads_divide", heads_divide, replace=True)
    OmegaConf.register_new_resolver("row", row, replace=True)
    OmegaConf.register_new_resolver("absolute", lambda path: str(absolute(path)), replace=True)
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    for size in ("width", "depth", "steps"):
        OmegaConf.register_new_resolver(size, partial(scaled, size), replace=True)
    OmegaConf.register_new_resolver("project", lambda folder: str(PROJECT / folder), replace=True)
