"""Compose the config and call the task that it names: `python src/run.py model=base data=wmt14_ende`.

Imports hydra and omegaconf only: `--help`, `--cfg job` and a mistyped key answer before torch could have been loaded.
"""

import os
import re
import signal
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # also when the project is not installed

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import Container, DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from aiayn import schema

# What the user wants to see; kept apart, because below and in every job that is started from here Hydra has to raise.
TRACEBACK = os.environ.setdefault("AIAYN_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR", "0")) == "1"


def explain(error: BaseException) -> str:
    """One line for an error that the user can mend: what Hydra wrapped, with a suggestion for a mistyped name."""
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read as key=value; quote a value with = , or a space: \"key='value'\"."
    while isinstance(error, HydraException | OmegaConfBaseException) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        # Hydra names no options where the missing one is an item of a list.
        options = error.options or sorted(file.stem for file in (schema.PROJECT / "conf" / group).glob("*.yaml"))
        return f"there is no {group}={name}{suggest(name, [option for option in options if option != 'schema'])}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        if isinstance(error, ConfigKeyError | ConfigAttributeError) and isinstance(error.parent_node, Container):
            return f"there is no key {error.full_key}{suggest(str(error.key), map(str, error.parent_node))}"
        if isinstance(error, MissingMandatoryValue):
            return f"{error.full_key} is not set; give {error.full_key}=..."
        reason = str(error).split("\n")[0].removeprefix("ValueError raised while resolving interpolation: ")
        return f"{error.full_key}: {reason}"
    text = " ".join(str(error).split())
    if inside := re.match(r"In '(.+?)': \w+ raised while composing config: (.+?) full_key: (\S+)", text):
        return f"{inside[1]}.yaml: {inside[3]}: {inside[2]}"
    return text


def suggest(name: str, known: Iterable[str]) -> str:
    """The known name that was meant, or all of them."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}."


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Run the task, with the folder that Hydra made as the run's folder."""
    try:
        if not cfg.run_dir:
            raise ValueError("run_dir is empty; name a folder, or leave the key out.")
        cfg.run_dir = HydraConfig.get().runtime.output_dir
        schema.make_absolute(cfg)
        hydra.utils.get_method(cfg.task)(cfg)
    except BrokenPipeError:  # who reads has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        if TRACEBACK or HydraConfig.get().mode is RunMode.MULTIRUN:  # a launcher that calls this wants to know
            raise
        sys.exit(f"error: {explain(error)}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what is half-written is removed
    schema.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, so that one place turns errors into a line
    try:
        main()
    except (ValueError, OSError, YAMLError, HydraException, OmegaConfBaseException) as error:
        if TRACEBACK:
            raise
        sys.exit(f"error: {explain(error)}")
    except KeyboardInterrupt:
        sys.exit(130)
