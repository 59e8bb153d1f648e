"""What a command that uses a finished run is given: checkpoints, data, and how to search.

A checkpoint brings its own data and its own search. What the command line says goes before it; the defaults of the
config, which are there for new runs, do not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from aiayn.arguments import check_arguments, check_groups
from aiayn.evaluation.metric import Metric
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.identity import UNSAID
from aiayn.paths import path_of
from aiayn.runs.run import Run
from aiayn.schema import check_ranges
from aiayn.trust import check_corpus, check_named, ours

if TYPE_CHECKING:  # it imports torch, which task=compare does without
    from aiayn.problems.problem import Problem


def overridden() -> list[str]:
    """The keys that the command line sets; none where a config was composed without one."""
    if not HydraConfig.initialized():
        return []
    return [override.lstrip("+~").partition("=")[0] for override in HydraConfig.get().overrides.task]


def checkpoint_files(value: Any) -> list[Path]:
    """The files that `checkpoint=` names: one, or a list for an ensemble.

    Raises:
        ValueError: if one of them is a folder without an averaged checkpoint.
    """
    from aiayn.checkpoints import checkpoint

    paths = value if OmegaConf.is_list(value) else [value]
    if not paths:
        raise ValueError("checkpoint=[] names no model; give a file, a run's folder, or several of them.")
    return [checkpoint.located(path_of({"checkpoint": path}, "checkpoint")) for path in paths]


def checkpoint_file(value: Any) -> Path:
    """The one file that `checkpoint=` names.

    Raises:
        ValueError: if it is not one, or a folder without an averaged checkpoint.
    """
    files = checkpoint_files(value)
    if len(files) != 1:
        raise ValueError(f"checkpoint must name one model here, got {len(files)}; an ensemble can only translate.")
    return files[0]


def evaluated_data(cfg: DictConfig, stored: Mapping[str, Any], file: Path | None = None) -> DictConfig:
    """The data to decode: those named with `data=`, else those of the stored config, a checkpoint's or a run's.

    Args:
        cfg: Of the command.
        stored: As `stored_config.checked` gives it.
        file: The checkpoint whose config it is; None where a run's folder says it itself.

    Raises:
        ValueError: if a key of the data is set without naming them, the stored config names no trusted corpus, or the
            file lies in no folder of a run on that corpus: what text a stranger's file names is not read.
    """
    keys = overridden()
    if "data" in keys or "experiment" in keys:
        check_groups(cfg, "data")
        return cfg.data
    if stray := [key for key in keys if key.startswith("data.") and key != "data.split"]:
        raise ValueError(f"{stray[0]} is set, but not for which data; name them too, as in data=text {stray[0]}=...")
    own = stored["data"]
    if not isinstance(corpus := own.get("corpus"), Mapping):
        raise ValueError("the stored config names no corpus; name the data on the command line: data=...")
    if file is not None and Run.read(run_of(file.absolute()), row="").config.get("data", {}).get("corpus") != corpus:
        raise ValueError(
            f"checkpoint {file} is in no folder of its run (with a result.json of its corpus), and text that a lone "
            "file names is not read; name the data on the command line: data=..."
        )
    check_corpus(corpus, trust=cfg.trust)
    return OmegaConf.create({"name": "data", **own, "split": cfg.data.split})


def evaluated_inference(cfg: DictConfig, stored: Mapping[str, Any]) -> dict[str, Any]:
    """How to search: as `inference=` says, else as the stored config does but for the keys that are set.

    Raises:
        ValueError: if a value is out of range.
    """
    keys = overridden()
    if "inference" in keys or "experiment" in keys:
        check_ranges({"inference": cfg.inference})
        return dict(cfg.inference)
    given = {name for key in keys if (name := key.removeprefix("inference.")) != key}
    own = stored["inference"]
    found = {name: value if name in given else own.get(name, value) for name, value in cfg.inference.items()}
    check_ranges({"inference": found})
    return found


def described(inference: Mapping[str, Any]) -> str:
    """How translations come about, in words: `beam 4, alpha 0.6`, or the settings of the sampling."""
    if inference.get("temperature") is None:
        own = inference.get("beta", UNSAID["inference.beta"]) != UNSAID["inference.beta"]
        keys: tuple[str, ...] = ("beam", "alpha", *(["beta"] if own else []))
    else:
        keys = ("temperature", "top_k", "top_p", "seed")
    return ", ".join(f"{key} {inference[key]}" for key in keys if inference.get(key) is not None)


def metric_options(cfg: DictConfig, stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the metrics of the command line are built from, by key: options of the stored config but for those set.

    Which class counts the command line says alone: a stranger may have written the stored config. Where it names none,
    a run of another problem has its own metrics, those of ours among them.

    Raises:
        ValueError: if an option is of another type than the metric takes.
    """
    check_groups(cfg, "metrics")
    keys, found = overridden(), {}
    listed, kept = cfg.metrics, stored.get("metrics", {})
    if "metrics" not in keys and (stored.get("problem") or cfg.problem).get("_target_") != cfg.problem.get("_target_"):
        listed = {key: own for key, own in kept.items() if own.get("_target_") in ours("metrics")}
    for key, chosen in listed.items():
        own = kept.get(key)
        taken = {
            name: own[name]
            for name in (own if isinstance(own, Mapping) else ())
            if name in chosen and not name.startswith("_") and f"metrics.{key}.{name}" not in keys
        }
        check_arguments(options := {**chosen, **taken}, f"metrics.{key}")
        found[str(key)] = options
    return found


def evaluated_metrics(cfg: DictConfig, stored: Mapping[str, Any]) -> dict[str, Metric]:
    """The metrics that `metric_options` describes."""
    return {key: instantiate(options) for key, options in metric_options(cfg, stored).items()}


def chosen_objective(cfg: DictConfig, stored: Mapping[str, Any]) -> str:
    """The key of the objective: the stored config's, unless the command line sets one."""
    return str(cfg.objective if "objective" in overridden() else stored["objective"])


def evaluated_objective(cfg: DictConfig, stored: Mapping[str, Any]) -> tuple[str, Metric]:
    """Key and metric of what is better.

    Raises:
        ValueError: if it is not among the metrics.
    """
    objective = chosen_objective(cfg, stored)
    if objective not in (metrics := evaluated_metrics(cfg, stored)):
        raise ValueError(
            f"metrics must have {objective}, the objective, which this is made of, got {', '.join(metrics) or 'none'}; "
            "add it, or name another objective."
        )
    return objective, metrics[objective]


def objective_of_text(cfg: DictConfig, stored: Mapping[str, Any]) -> tuple[str, Metric]:
    """Key and metric of what is better, for commands that score translations.

    Raises:
        ValueError: if it is not among the metrics, or is no score of translations.
    """
    objective, metric = evaluated_objective(cfg, stored)
    if isinstance(metric, Perplexity):
        raise ValueError(f"objective={objective} is no score of translations; name one that is: objective=bleu.")
    return objective, metric


def evaluated_problem(
    cfg: DictConfig, stored: Mapping[str, Any], data: DictConfig, inference: Mapping[str, Any]
) -> "Problem":
    """The problem of a stored config, on the data and with the search that are wanted now.

    Raises:
        ValueError: if it is none of ours and not trusted either.
    """
    from aiayn.problems.problem import problem_of

    kind = stored["problem"]
    check_named(kind, ours=ours("problem").__contains__, trust=cfg.trust, what="the stored problem")
    for key in ("source_language", "target_language"):  # which data=text leaves out
        if data.get(key) is None:
            data[key] = stored["data"].get(key)
    return problem_of(OmegaConf.create({**stored, "data": data, "inference": inference}))


def run_of(file: Path) -> Path:
    """The folder that a checkpoint's results belong in: its run's, an exported folder itself, else the file's own.

    Args:
        file: As `checkpoint.located` gives it, absolute.
    """
    if file.is_dir():
        return file
    return file.parent.parent if file.parent.name == "checkpoints" else file.parent


def chosen_folder(output: Any, default: Path) -> Path:
    """The folder that `output=` names.

    Raises:
        ValueError: if a file is in its place.
    """
    folder = default if output is None else path_of({"output": output}, "output")
    if taken := [path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()]:
        raise ValueError(f"output must be a folder, got {folder}, and {taken[0]} is none; name another output.")
    return folder
