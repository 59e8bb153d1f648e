"""Compose the config and call the task that it names: `python src/run.py model=base data=wmt14_ende`.

Imports hydra and omegaconf only: `--help`, `--cfg job`, a mistyped key and a value that is out of range answer before
torch could have been loaded.
Whatever goes wrong ends here, in one line on standard error and the exit code 1.
"""

import logging
import os
import shutil
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parent))  # also when the project is not installed

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from aiayn import paths, resolvers, schema
from aiayn.errors import FORESEEN, explain, unwrapped

# What the user wants to see; kept apart, because below and in every job that is started from here Hydra has to raise.
TRACEBACK = os.environ.setdefault("AIAYN_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR", "0")) == "1"


def fail(error: Exception) -> NoReturn:
    """Leave with one line on standard error; the traceback of what nobody foresaw goes into the run's log.

    Raises:
        Exception: the error itself, where its traceback is asked for.
    """
    if isinstance(error, BrokenPipeError):  # who reads has seen enough, as in `| head`
        drop_output()
        sys.exit(128 + signal.SIGPIPE)
    if TRACEBACK:
        raise error
    line = explain(error)
    if not isinstance(unwrapped(error)[0], FORESEEN):
        line = f"{line}; {keep_traceback(error)}"
    print("error:", "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line), file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk: Python would try again, and complain
        drop_output()
    sys.exit(1)


def keep_traceback(error: Exception) -> str:
    """Write the traceback into the run's log, where the task has one, and say where it is."""
    for log in logging.getLogger().handlers:
        with suppress(OSError):
            if isinstance(log, logging.FileHandler):
                about = (type(error), error, error.__traceback__)
                log.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, "what ended the run:", (), about))
                return f"the traceback is in {log.baseFilename}"
    return "AIAYN_TRACEBACK=1 shows where it comes from"


def drop_output() -> None:
    """Let nothing more be written to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def remove_unbegun(folder: Path, outputs: Path) -> None:
    """Remove the folder of a run that was refused before it began: there is nothing but Hydra's copy of the config."""
    if {file.name for file in folder.iterdir()} <= {".hydra", ".lock"}:
        shutil.rmtree(folder)
        for above in folder.parents:
            if not above.is_relative_to(outputs) or any(above.iterdir()):
                break
            above.rmdir()


def open_streams() -> None:
    """Open the standard streams that the shell has closed, on nothing; what is opened next would get their numbers.

    What the encoding of standard output lacks is escaped there: a table or a sample is no reason to fail.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def add_own_folder() -> None:
    """Let what lies beside `--config-dir` be imported, here and in every process that is started from here.

    Raises:
        ValueError: if a file there would never be read, since one of ours has its place.
    """
    if (given := get_args_parser().parse_args().config_dir) is None:
        return
    own = Path(os.path.abspath(given))
    for file in sorted(own.rglob("*.yaml")):
        if (schema.PROJECT / "conf" / file.relative_to(own)).exists():
            raise ValueError(f"{file} would never be read: aiayn has one of that name; give yours another.")
    sys.path.insert(1, str(own.parent))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(own.parent), *([inherited] if inherited else [])])


@hydra.main(version_base="1.3", config_path=str(schema.PROJECT / "conf"), config_name="config")
def main(cfg: DictConfig) -> None:
    """Run the task, with the folder that Hydra made as the run's folder."""
    try:
        for key in ("name", "outputs", "run_dir"):
            resolvers.given(key, _root_=cfg)
        cfg.run_dir = HydraConfig.get().runtime.output_dir
        schema.check_languages(cfg)
        paths.make_absolute(cfg)
        schema.check_run(cfg, Path(cfg.run_dir))
        module, _, name = cfg.task.rpartition(".")
        getattr(import_module(module), name)(cfg)
        sys.stdout.flush()  # what cannot be written shows now, when it can still be said
    except Exception as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN:  # a launcher that calls this wants to know
            raise
        if cfg.run_dir and HydraConfig.get().output_subdir and isinstance(unwrapped(error)[0], FORESEEN):
            remove_unbegun(Path(cfg.run_dir), Path(cfg.outputs).absolute())
        fail(error)


def run() -> None:
    """Obey the command line; what goes wrong ends in one line on standard error and the exit code 1."""
    schema.register()
    resolvers.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, so that one place turns errors into a line
    logging.raiseExceptions = False  # what the log cannot keep, on a full disk, is no reason for more words
    try:
        add_own_folder()
        main()
        sys.stdout.flush()  # of `--help` and `--cfg job` too
    except Exception as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    open_streams()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what is half-written is removed
    run()
