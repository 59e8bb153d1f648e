"""What makes an experiment, key by key, and of what text and code its figures were made.

Everything in a resolved config makes the experiment what it is, what a user adds too, unless it is listed here as only
saying where and how. Resuming a run, being done, rows of sweeps, their folders and the rows of reports all ask here.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.utils import instantiate
from yaml import YAMLError

from aiayn.files import absolute, digest
from aiayn.trust import check_corpus

# Keys, with all below them, that say where and how a run is done and what it is shown beside, but not what is learned
# or measured.
WHERE_AND_HOW = {
    *("task", "sweep", "scale", "launcher", "logger", "outputs", "corpora", "run_dir", "force"),
    *("plan", "report", "claims", "paper", "published", "folder", "watch", "stop", "metrics", "trust"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy"),
    *("trainer.profiler", "trainer.detect_anomaly", "trainer.benchmark", "trainer.deterministic"),
    *("trainer.limit_test_batches", "trainer.limit_predict_batches"),
    *("callbacks.speed", "callbacks.quality", "callbacks.averaging", "callbacks.best", "callbacks.likelihoods"),
    "callbacks.halving.dirpath",
    *("data.path", "data.corpus.path"),  # of a copy of the text; which text it is, its fingerprint tells
    *("data.tokens_per_device", "data.prepare_workers", "data.loader_workers"),
    *("training.log_steps", "inference.tokens_per_batch"),
}
# When a run ends. That makes another experiment, but a run that goes on may get another end.
ENDS = {
    *("training.max_steps", "training.max_epochs", "trainer.max_time"),
    *("callbacks.early_stopping", "callbacks.halving"),
}
NOT_ITS_OWN = {"seed", "callbacks.halving"}  # of a row: what may differ between its runs
VARIED = ("seed", "model", "training", "inference")  # parts of a config, first in a name that is cut

# Which say what another does, unless they are set.
FOLLOWS = {f"model.{side}_layers": "model.layers" for side in ("encoder", "decoder")} | {
    "model.kv_heads": "model.heads"
}
# What a key says that is left out, where that is not null or false: a config may be older than the key.
UNSAID = {
    "inference.beta": 5.0,
    **{f"model.{key}": 0.0 for key in ("attention_dropout", "attention.attention_dropout")},
    **{f"model.{key}": 0.0 for key in ("activation_dropout", "feed_forward.activation_dropout")},
    "data.shared_vocabulary": True,
    "problem._target_": "aiayn.problems.translation.Translation",
    "problem._partial_": True,
}

WEIGHTS = ("checkpoints/averaged.ckpt", "model.safetensors", "model.bin")  # of a run's folder, and of exported ones
PACKAGE = Path(__file__).parent
STAGES = (
    "data",
    "model",
    "training",
    "checkpoints",
    "inference",
    "evaluation",
    "callbacks",
    "problems",
)  # of ours; figures go through them


def leaves(config: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{key}{name}.")
        else:
            yield f"{key}{name}", value


def identity(config: Mapping[str, Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """The leaves of a config that make it this experiment, but for some keys, with all below them.

    What is off, or as in `UNSAID`, is left out: a config that is older than a switch says the same.
    """
    evaluation = config.get("checkpoint") is not None  # a report has the key too, for sweeps of evaluations
    return {
        key: value
        for key, value in leaves(config)
        if (value != UNSAID[key] if key in UNSAID else value is not None and value is not False)
        and makes_experiment(key, evaluation=evaluation, objective=config.get("objective"))
        and not _is_under(key, but)
    }


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What tells an experiment from others in a table: no seed, and once what parts repeat, as `heads`."""
    found = identity(config, but=NOT_ITS_OWN)
    return {key: value for key, value in found.items() if not (is_repeated(key, found) or key.endswith("._partial_"))}


def is_repeated(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a leaf says what one above it, or another part, says, as `model.attention.heads` and `model.heads`."""
    part, *names = key.split(".")
    above = [".".join([part, *names[start:]]) for start in range(1, len(names))]
    above += [".".join(names[start:]) for start in range(len(names) - 1)]  # a callback has the whole `inference`
    above += [f"model.{names[-1]}"] if len(names) > 1 else []  # the schedule knows the model's size
    above += [FOLLOWS[key]] if key in FOLLOWS else []
    return key in values and any(other in values and values[other] == values[key] for other in above)


def makes_experiment(key: str, *, evaluation: bool, objective: str | None) -> bool:
    """Whether a key is part of an experiment, which is an evaluation or a training.

    Of the metrics of a training that is the objective alone: how it is counted decides which checkpoint is best.
    """
    if key == "data.split" or _is_under(key, {"metrics"}):  # what is decoded, and what is measured
        return evaluation or _is_under(key, {f"metrics.{objective}"})
    part, _, rest = key.partition(".")
    if part == "callbacks" and "metrics" in rest.split("."):  # of which one looks at the objective
        return False
    return not _is_under(re.sub(r"^data\.mixture\.[^.]+\.", "data.", key), WHERE_AND_HOW)


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, but: Collection[str] = ()) -> list[str]:
    """The keys that make two configs other experiments, but for some, with all below them; the highest ones first."""
    one, other = identity(mine, but=but), identity(theirs, but=but)
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return sorted(keys, key=lambda key: (key.count("."), key))


def _is_under(key: str, keys: Collection[str]) -> bool:
    return any(above in keys for above in accumulate(key.split("."), "{}.{}".format))


def row(overrides: Sequence[str], objective: str) -> str:
    """The folder of a sweep's job: its experiment and the overrides that make it; a long tail becomes a hash.

    It depends on the job alone, not on what its sweep varies: a wider sweep finds the rows of a narrower one.
    """
    split = [override.lstrip("+~").partition("=") for override in overrides]
    evaluation = any(key == "checkpoint" for key, _, _ in split)
    names: list[str] = []
    for override, (key, _, value) in sorted(zip(overrides, split, strict=True)):
        if key == "experiment":
            names.insert(0, value)
        elif key == "checkpoint":  # a long path
            names.append(f"{Path(value).stem}-{_hash(str(absolute(value)))[:8]}")
        elif key == "trainer":  # trainer=ddp chooses devices
            continue
        elif override == "callbacks=halving" or key.startswith("callbacks.halving."):
            continue  # a row that it has stopped goes on in its folder without it
        elif makes_experiment(key, evaluation=evaluation, objective=objective):
            names.append(override)
    name = ",".join(names).replace("/", "_") or "base"
    if len(name) <= 100:
        return name

    def place(part: str) -> int:
        """Before the cut stands what sweeps vary most; an experiment and a checkpoint have no key."""
        key = re.split("[=./]", part.lstrip("+~"))[0]
        return -1 if "=" not in part else VARIED.index(key) if key in VARIED else len(VARIED)

    shown = ",".join(sorted(names, key=place)).replace("/", "_")
    return f"{shown[:90]}-{_hash(name)[:8]}"


def made_of(config: Mapping[str, Any], *, own: bool) -> dict[str, str]:
    """Hashes of what a run's figures are made of, by name: its text, checkpoints and tokenizer that it is given, code.

    Code is that of our stages, by package, and of each other module that the experiment names. Nothing is imported for
    it. What cannot be read has no hash.

    Args:
        config: The resolved config, plain containers.
        own: Whether it is the command line's, which may name any corpus; else one of ours alone is asked for its text.
    """
    code = {f"aiayn.{stage}": _folder_hash(PACKAGE / stage) for stage in STAGES}
    measured = leaves({"metrics": config.get("metrics") or {}})
    for key, target in {**identity(config), **dict(measured)}.items():
        found = module_of(target) if key.split(".")[-1] == "_target_" and isinstance(target, str) else None
        if found and not any(found[0].startswith(f"{package}.") for package in code):
            code[found[0]] = digest(found[1])[:16]
    text = _text_hash(config.get("data") or {}, own=own)
    others = {"initialize": (config.get("training") or {}).get("initialize")}
    others["tokenizer"] = (config.get("data") or {}).get("tokenizer")
    return {
        **({"text": text} if text else {}),
        **_checkpoint_hash(config.get("checkpoint")),
        **{name: value for name, other in others.items() for value in _checkpoint_hash(other).values()},
        **code,
    }


def claims_hashes() -> dict[str, str]:
    """Hashes of the claims that are known now, by the names of their files; comments and layout do not count.

    A run keeps them when it begins, so that a report can say whether its claims are older than what they are put to.
    """
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    folders = [Path(source.path, "claims") for source in sources if source.schema == "file"]
    found = {}
    for file in (file for folder in reversed(folders) for file in sorted(folder.glob("*.yaml"))):
        with suppress(OSError, ValueError, YAMLError):  # the report refuses it, and no training is lost
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            found[file.stem] = _hash(json.dumps(content, sort_keys=True, default=str))
    return found


def changed(result: Mapping[str, Any], *, own: bool) -> list[str]:
    """What is no more as it was when the figures of a result.json or evaluation.json were made.

    Args:
        result: With `config` and `made_of`; one without the latter is older than it, and nothing is known to differ.
        own: As for `made_of`.
    """
    before, config = result.get("made_of"), result.get("config")
    if not isinstance(before, dict) or not isinstance(config, dict):
        return []
    now = made_of(config, own=own)
    return [name for name, value in before.items() if now.get(name, value) != value]


def module_of(target: str) -> tuple[str, Path] | None:
    """Name and file of the module that a dotted path leads into; None if there is none. It is not imported."""
    found, places = None, None
    for name in accumulate(target.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            break
        if spec.origin and spec.has_location:
            found = name, Path(spec.origin)
        if (places := spec.submodule_search_locations) is None:
            break
    return found


def _text_hash(data: Mapping[str, Any], *, own: bool) -> str | None:
    """Of the fingerprints of the corpora that a config of data describes."""
    with suppress(ValueError, TypeError, AttributeError, OSError, HydraException):  # no such files here, for one
        mixed = {name: part.get("corpus") for name, part in (data.get("mixture") or {}).items()}
        corpora = [data.get("corpus"), *(mixed[name] for name in sorted(mixed))]
        if not own:
            for corpus in corpora:
                check_corpus(corpus, trust=())
        found = [instantiate(corpus, _convert_="all").fingerprint() for corpus in corpora]
        return _hash(json.dumps(found if mixed else found[0], sort_keys=True, default=str))
    return None


def _checkpoint_hash(names: Any) -> dict[str, str]:
    """Of the checkpoint files that an evaluation names, from the root, with commas, or as a list."""
    # A path may have commas itself, as the folder of a sweep's row has; the next one begins with a slash.
    listed: Any = re.split(",(?=/)", names) if isinstance(names, str) else names
    paths = [Path(str(name)) for name in listed] if isinstance(listed, list) else []
    files = [next((path / place for place in WEIGHTS if (path / place).is_file()), path) for path in paths]
    with suppress(OSError):
        return {"checkpoint": _hash(",".join(map(digest, files)))} if files else {}
    return {}


def _folder_hash(folder: Path) -> str:
    """Of the names and the contents of a package's files."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".yaml"))
    return _hash(json.dumps([[str(file.relative_to(folder)), digest(file)] for file in files]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
