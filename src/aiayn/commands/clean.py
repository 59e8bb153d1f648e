"""task=clean: free the space that the checkpoints of a finished run take."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from aiayn.files import remove_leftovers
from aiayn.paths import path_of
from aiayn.runs.run import Run
from aiayn.runs.run_folder import locked, step_checkpoints

KEPT = ("averaged", "best", "last")


def clean(cfg: DictConfig) -> None:
    """Print which checkpoints of `run` go, with their sizes, and remove them if `remove` says so.

    Only files that a run writes are looked at, and those that `keep` names stay. The run is still done.

    Raises:
        ValueError: if the run is not done or in use, or there is no checkpoint that is to be kept.
    """
    path, keep = path_of(cfg, "run"), names_of(cfg.keep)
    if not isinstance(cfg.remove, bool):
        raise ValueError(f"remove must be true or false, got {cfg.remove}.")
    run = Run.read(path, row=path.name)
    if run.state != "done" or not (path / "result.json").is_file():
        raise ValueError(
            f"run={path} must be the folder of a finished run, but its state is {run.state}; finish it, or name "
            "another."
        )
    with locked(path):
        folder = path / "checkpoints"
        steps = [*step_checkpoints(folder).values()]
        files = {name: folder / f"{name}.ckpt" for name in ("averaged", "best")}
        files["last"] = steps[-1] if steps else folder / "step_*.ckpt"
        if missing := [name for name in keep if not files[name].is_file()]:
            raise ValueError(f"keep={missing[0]}: run={path} has no {files[missing[0]].name}; keep another one.")
        kept = {files[name] for name in keep}
        own = (*steps, files["best"], files["averaged"])
        sizes = {file: file.stat().st_size for file in own if file.is_file() and file not in kept}
        for file, size in sizes.items():
            print(f"{size / 1e6:>12,.1f} MB  {file.relative_to(path)}")
            if cfg.remove:
                file.unlink()
        if cfg.remove:
            remove_leftovers(folder, of_every_host=True)
        done = "were freed" if cfg.remove else "would be freed; give remove=true to remove these files"
        print(f"{sum(sizes.values()) / 1e6:>12,.1f} MB  {done}; {', '.join(sorted(file.name for file in kept))} stays")


def names_of(keep: Any) -> list[str]:
    """The checkpoints that `keep` names.

    Raises:
        ValueError: if it names none, or one that there is not.
    """
    names = list(keep) if OmegaConf.is_list(keep) else [keep]
    if not names or any(name not in KEPT for name in names):
        raise ValueError(f"keep must be one of {', '.join(KEPT)}, or a list of them, got {keep}.")
    return names
