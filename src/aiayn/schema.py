"""Types of the config keys, so that a mistyped key or value is refused when the config is composed.

Imported by `run.py` before anything else; hence no torch here. The values, and what they mean, are in conf/.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf, nextafter
from pathlib import Path
from sys import float_info
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf

from aiayn.paths import MIXED, NEEDED, READ, SIDES, TO_LEARN_FROM, paths_of

PROJECT = Path(__file__).parents[2]
# What others report of a row: where, of which system, by which score, with the idea of the row and without it, of how
# many trainings.
PUBLISHED = ("paper", "system", "metric", "with", "without", "seeds")
TRAIN, PREPARE = "aiayn.commands.train.train", "aiayn.commands.prepare.prepare"


@dataclass
class Config:
    """What every command has besides its groups; those, and tasks, add keys of their own."""

    name: str = MISSING
    seed: int = MISSING
    objective: str = MISSING
    problem: dict[str, Any] = MISSING
    outputs: str = MISSING
    corpora: str = MISSING
    run_dir: str = MISSING
    trust: list[str] = field(default_factory=list)
    paper: dict[str, float | None] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelConfig:
    """The model's class, sizes with the paper's symbols, and the parts that it is built from."""

    _target_: str = MISSING
    name: str = MISSING
    layers: int = MISSING
    encoder_layers: int = MISSING
    decoder_layers: int = MISSING
    d_model: int = MISSING
    d_ff: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    encoder_kv_heads: int | None = None  # null: kv_heads; likewise the next two
    decoder_kv_heads: int | None = None
    cross_kv_heads: int | None = None
    d_k: int = MISSING
    d_v: int = MISSING
    dropout: float = MISSING
    attention_dropout: float = MISSING
    activation_dropout: float = MISSING
    attention: dict[str, Any] = MISSING
    position: dict[str, Any] = MISSING
    feed_forward: dict[str, Any] = MISSING
    norm: dict[str, Any] = MISSING
    decoder_norm: Any = None  # the decoder's, where it is another one, as in norm/deep.yaml
    end: Any = None  # what follows the last layer, such as a pre-norm's final norm; a norm's file may set it


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
    held_out: Any = True  # remove dev's and test's sentences from train; source: those of the source side alone
    duplicates: bool = True  # remove repeated pairs


@dataclass
class DataConfig:
    """A corpus, its tokenizer and its batches."""

    name: str = MISSING
    source_language: str | None = None
    target_language: str | None = None
    corpus: dict[str, Any] = MISSING
    path: str | None = None  # of a local copy, for corpora that are downloaded otherwise
    test_set: str | None = None  # for corpora with several
    train: Files = field(default_factory=Files)
    dev: Files = field(default_factory=Files)
    test: Files = field(default_factory=Files)
    tests: dict[str, Any] = field(default_factory=dict)  # further test sets, by name, as test
    mixture: dict[str, Any] = field(default_factory=dict)  # more corpora to train on, by name: their weight and corpus
    split: str = "test"  # what task=evaluate decodes
    tokenizer: str | None = None  # a run, checkpoint or SentencePiece model whose pieces are taken, none being learnt
    shared_vocabulary: bool = True  # one tokenizer, and one embedding matrix, for both languages (section 5.1)
    vocab_size: int = MISSING  # of each tokenizer
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

    optimizer: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    loss: dict[str, Any] = MISSING
    initialize: str | None = None
    max_steps: int = MISSING
    max_epochs: int | None = None
    warmup_steps: int = MISSING
    learning_rate_scale: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    gradient_clip_norm: float | None = None
    label_smoothing: float = MISSING
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = None
    keep_checkpoints: int = MISSING
    validate_steps: int = MISSING
    log_steps: int = MISSING
    tokens_per_batch: int = MISSING  # for corpora that leave it to the recipe


@dataclass
class InferenceConfig:
    """Section 6.1; with a temperature samples take the place of the search."""

    beam: int = MISSING
    alpha: float = MISSING
    beta: float = MISSING
    well_formed: bool = False
    max_extra_length: int = MISSING
    tokens_per_batch: int = MISSING
    temperature: float | None = None  # null: search with the beam
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


# Keys that nobody reads but those who take them: a model of one's own, and other optimizers, schedules and losses.
OF_MODEL = {field.name for field in fields(ModelConfig)} - {"_target_", "name"}
OF_RECIPE = {"warmup_steps", "learning_rate_scale", "betas", "eps", "label_smoothing"}
SCHEMAS = {"model": ModelConfig, "data": DataConfig, "training": TrainingConfig, "inference": InferenceConfig}


ABOVE_0, ABOVE_1 = float_info.min, nextafter(1, 2)
MOST_OFTEN = 1000  # of a corpus in an epoch
HELD_OUT = ("dev", "test", "tests")  # arguments of a corpus that do not change what is trained on
MOST = 2**31  # of steps and tokens; libraries count them in 32 bits
# Least values, and values that are already too much.
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32),  # NumPy's seeds
    "data.vocab_size": (1, 2**24),  # sixty times the largest in use
    "data.character_coverage": (ABOVE_0, ABOVE_1),
    "data.tokenizer_sample": (1, inf),
    **{f"data.cleaning.{most}": (1, inf) for most in ("max_length", "max_ratio")},
    **{f"data.tokens_per_{unit}": (1, MOST) for unit in ("batch", "device")},
    "data.prepare_workers": (1, 1025),
    "data.loader_workers": (0, 1025),
    "model.layers": (1, 1001),  # Wang et al. 2022, DeepNet
    "model.encoder_layers": (1, 1001),
    "model.decoder_layers": (1, 1001),
    "model.d_model": (1, 2**17),
    "model.d_ff": (1, 2**20),
    "model.heads": (1, 2**17),
    **{f"model.{part}kv_heads": (1, 2**17) for part in ("", "encoder_", "decoder_", "cross_")},
    "model.d_k": (1, 2**17),
    "model.d_v": (1, 2**17),
    **{f"model.{part}dropout": (0, 1) for part in ("", "attention_", "activation_")},
    "model.attention.window": (1, 2**17),
    "model.attention.scale": (ABOVE_0, inf),
    "model.position.max_length": (1, 2**17),  # the weights of one head on so long a sentence are 64 GiB
    **{f"training.{end}": (1, MOST) for end in ("max_steps", "max_epochs", "warmup_steps", "tokens_per_batch")},
    **{f"training.{often}_steps": (1, MOST) for often in ("checkpoint", "validate", "log")},
    "training.keep_checkpoints": (1, MOST),
    "training.checkpoint_minutes": (ABOVE_0, inf),
    "training.learning_rate_scale": (ABOVE_0, inf),
    "training.optimizer.lr": (ABOVE_0, inf),
    "training.eps": (ABOVE_0, inf),
    "training.gradient_clip_norm": (ABOVE_0, inf),
    "training.label_smoothing": (0, 1),
    "callbacks.quality.samples": (0, MOST),
    "logger.csv.flush_logs_every_n_steps": (1, MOST),
    "inference.beam": (1, 1001),  # as wide as Koehn and Knowles 2017 went, who saw BLEU fall long before
    "inference.alpha": (0, inf),
    "inference.beta": (0, inf),
    "inference.max_extra_length": (0, 2**17),
    **{f"inference.{count}": (1, MOST) for count in ("tokens_per_batch", "top_k")},
    "inference.temperature": (0, inf),
    "inference.top_p": (0, ABOVE_1),
    "inference.seed": (0, 2**32),
}
# What is built from a config: these, and each item of these groups.
BUILT = (
    *("data.corpus", "data.cleaning", "model.attention", "model.position", "model.feed_forward", "model.norm"),
    *("training.optimizer", "training.schedule", "training.loss", "problem"),
)
GROUPS = {"callbacks": ("speed", "averaging"), "metrics": (), "logger": ()}  # with what a run cannot do without


def check_run(cfg: DictConfig, folder: Path) -> None:
    """Refuse what can be refused before the task, and with it torch, is imported.

    Args:
        cfg: Composed, with paths from the root.
        folder: Of the run. What a run that has begun there was made of may be gone.

    Raises:
        ValueError: as `check`, or if something that is to be read does not exist.
        MissingMandatoryValue: if a key of the task is not set.
    """
    for key in cfg:
        if OmegaConf.is_missing(cfg, key):
            cfg[key]  # which raises it
    if cfg.get("task") == TRAIN:
        check(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]
    learns = cfg.get("task") in (TRAIN, PREPARE) and not (folder / "result.json").exists()
    for key, part, name in paths_of(cfg):
        mixed = MIXED.fullmatch(key)
        if key in READ or (learns and (mixed or key in TO_LEARN_FROM)):
            given = key.replace("data.corpus", "data")
            if (value := part[name]) is None and (key in NEEDED or (mixed and name in SIDES)):
                raise ValueError(f"{given} is not set; give a file of text, one sentence a line.")
            for path in value if isinstance(value, ListConfig) else [value]:
                if isinstance(path, str) and not Path(path).exists():
                    raise ValueError(f"{given}={path} does not exist; give the path of a file or folder that does.")


def check(config: dict[str, Any]) -> None:
    """Refuse a config that would fail later, in the middle of a run.

    Raises:
        ValueError: with the key, the value and the rule.
    """
    check_ranges(config)
    check_built(config)
    for key, schema in (("", Config), *((f"{group}.", schema) for group, schema in SCHEMAS.items())):
        part = config.get(key[:-1], {}) if key else config
        spared = OF_RECIPE if key == "training." else OF_MODEL if key == "model." and not has_our_model(config) else ()
        if missing := [one.name for one in fields(schema) if one.name not in part and one.name not in spared]:
            raise ValueError(f"{key}{missing[0]} is needed; leave it in.")
    betas = within(config, "training.betas")
    if betas is not None and (len(betas) != 2 or not all(0 <= beta < 1 for beta in betas)):
        raise ValueError(f"training.betas must be two numbers from 0 to below 1, got {betas}.")
    check_published(config["published"])
    if not isinstance(config.get("force", False), bool):
        raise ValueError(f"force must be true or false, got {config['force']}.")
    if not isinstance(config.get("trainer"), Mapping):
        raise ValueError(f"trainer must be a file of conf/trainer, got {config.get('trainer')}.")
    for group, needed in GROUPS.items():
        if missing := [name for name in needed if name not in (chosen := config.get(group, {}))]:
            there = ", ".join(chosen) or "none"
            raise ValueError(f"{group} must have {missing[0]}, which every run needs, got {there}; add it.")
    if (objective := config["objective"]) not in (metrics := config.get("metrics", {})):
        raise ValueError(
            f"objective must be one of metrics, got {objective}; there are {', '.join(metrics) or 'none'}: add it to "
            "them, or choose another one."
        )


def check_published(published: Mapping[str, Any]) -> None:
    """Refuse with a ValueError what others report of a row where it has other keys, or scores that are no numbers."""
    if not published:
        return
    if wrong := [key for key in published if key not in PUBLISHED]:
        raise ValueError(f"published.{wrong[0]} is no key of it; there are {', '.join(PUBLISHED)}.")
    for key in ("paper", "metric", "with"):
        if published.get(key) is None:
            raise ValueError(f"published.{key} is missing; say the paper, the metric and the score with the idea.")
    for key in ("with", "without", "seeds"):
        if (value := published.get(key)) is not None and type(value) not in (int, float):
            raise ValueError(f"published.{key} must be a number, got {value}.")


def check_ranges(config: Mapping[str, Any]) -> None:
    """Refuse with a ValueError numbers that are out of range, in the groups that are given; NaN is in no range."""
    for key, (least, too_much) in RANGES.items():
        value = within(config, key)
        if value is not None and not (type(value) in (int, float) and least <= value < too_much):
            low = "above 0" if least == ABOVE_0 else f"at least {least}"
            high = "" if too_much == inf else " and at most 1" if too_much == ABOVE_1 else f" and below {too_much}"
            raise ValueError(f"{key} must be {low}{high}, got {value}.")


def check_built(config: Mapping[str, Any]) -> None:
    """Refuse with a ValueError what cannot be built, in the groups that are given: it must name its class."""
    for group in GROUPS:
        if not isinstance(items := config.get(group, {}), Mapping):
            raise ValueError(f"{group} must be a list of files of conf/{group}, got {group}={items}.")
        for name, value in items.items():
            if not isinstance(value, Mapping) or "_target_" not in value:
                raise ValueError(f"{group}.{name} has no _target_, got {value}; to leave it out give ~{group}.{name}.")
    for key in BUILT:
        part = key.partition(".")[0]
        if part not in config or (part == "model" and within(config, key) is None and not has_our_model(config)):
            continue
        if (value := within(config, key) or {}).get("_target_") is None:
            raise ValueError(f"{key} must name its class under _target_, got {value}.")
    check_mixture(config.get("data") or {})


def check_mixture(data: Mapping[str, Any]) -> None:
    """Refuse with a ValueError further corpora to train on that are none, are the main one, or have no weight."""
    for name, mixed in (data.get("mixture") or {}).items():
        key = f"data.mixture.{name}"
        if not re.fullmatch(r"\w[\w-]*", str(name)):
            raise ValueError(f"{key}: name a corpus otherwise, by letters, digits, - and _, and no - first.")
        if not isinstance(mixed, Mapping) or mixed.keys() != {"weight", "corpus"}:
            raise ValueError(f"{key} must have the keys weight and corpus, and no other, got {mixed}.")
        if within(corpus := mixed["corpus"], "_target_") is None:
            raise ValueError(f"{key}.corpus must name its class under _target_, got {corpus}.")
        if type(weight := mixed["weight"]) not in (int, float) or not 0 < weight <= MOST_OFTEN:
            raise ValueError(
                f"{key}.weight must be above 0 and at most {MOST_OFTEN}, got {weight}: it is how often an epoch has a "
                "pair of the corpus; to train without it, leave it out."
            )
        of_train = ({name: one for name, one in of.items() if name not in HELD_OUT} for of in (corpus, data["corpus"]))
        if next(of_train) == next(of_train):
            raise ValueError(f"{key}.corpus is data.corpus again, which every epoch has once; name other text.")


def has_our_model(config: Mapping[str, Any]) -> bool:
    """Whether the model's class is one of this project, which takes all keys of `model`."""
    return str(within(config, "model._target_")).startswith("aiayn.")


def within(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none, or it was left to be set, `???`."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value == "???" else value


def check_languages(cfg: Any) -> None:
    """Refuse with a ValueError the truth value that YAML 1.1 makes of a plain `no`, which is Norwegian's code."""
    for key in ("data.source_language", "data.target_language", "language"):
        if (value := OmegaConf.select(cfg, key)) in (True, False, "True", "False"):  # a typed key holds its name
            quoted = f"quote it in the file, {key.rpartition('.')[2]}: 'no', or give {key}=no on the command line."
            raise ValueError(f"{key} must be an ISO code, as in de, got {value}, YAML's plain no or on; {quoted}")


def count_of(cfg: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    """The whole number that a task's own key gives.

    Raises:
        ValueError: if it is none, or less than `least`.
    """
    value = cfg[key]
    if type(value) is not int or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, got {value!r}.")
    return value


def register() -> None:
    """Make the schema known to Hydra; `resolvers.register` adds what conf/ calls."""
    store = ConfigStore.instance()
    store.store(name="schema", node=OmegaConf.structured(Config, flags={"struct": False}))
    for group, schema in SCHEMAS.items():
        typed = OmegaConf.structured(schema)
        # A plain mapping of typed values: a file of one's own may add keys, which a dataclass would refuse.
        store.store(group=group, name="schema", node=DictConfig({name: typed._get_node(name) for name in typed}))
