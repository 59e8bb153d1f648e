"""task=status: how the rows of a sweep, or the runs in a folder, stand; and the end of a sweep that runs elsewhere."""

import logging
import time
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.live import Live

from aiayn.runs.run import names_of, read_folder, read_rows
from aiayn.runs.sweep import LOCK, Progress, listing, show, stop_sweep, table
from aiayn.terminal import Terminal

log = logging.getLogger(__name__)

SECONDS = 2.0  # between two looks with watch=true


def status(*rows: DictConfig) -> None:
    """Print a table of the rows; with `stop`, end the process that sweeps before.

    Raises:
        ValueError: if neither a sweep nor a folder is given.
    """
    cfg = rows[0]
    if not cfg.folder and len(rows) == 1 and HydraConfig.get().mode != RunMode.MULTIRUN:
        raise ValueError("task=status shows a sweep or a folder of runs; give sweep=... or folder=PATH.")
    for key in ("stop", "watch"):
        if not isinstance(cfg[key], bool):
            raise ValueError(f"{key} must be true or false, got {cfg[key]}.")
    if cfg.stop:
        place = Path(cfg.folder or rows[0].run_dir).absolute()
        folder = next((path for path in (place, *place.parents) if (path / LOCK).exists()), place)
        process = stop_sweep(folder)
        log.info("stopped process %s" if process else "%s", process or f"no process sweeps in {folder}")
    if cfg.watch:
        watch(*rows)
    show(read(*rows), shown_as=listing if cfg.folder else table)


def read(*rows: DictConfig) -> list[Progress]:
    """The rows as they stand now: of a sweep by what differs between them, else by their folders."""
    folder = rows[0].folder
    runs = read_folder(Path(folder)) if folder else read_rows(rows)
    is_sweep = not folder or (Path(folder) / LOCK).exists()
    return [Progress.of(*of) for of in zip(runs, names_of(runs) if is_sweep else [""] * len(runs), strict=True)]


def watch(*rows: DictConfig) -> None:
    """Show the table until Ctrl-C."""
    shown_as = listing if rows[0].folder else table
    with suppress(KeyboardInterrupt), Live(console=Terminal(), auto_refresh=False, transient=True) as screen:
        while True:
            screen.update(shown_as(read(*rows), most=max(3, screen.console.height - 7)), refresh=True)
            time.sleep(SECONDS)
