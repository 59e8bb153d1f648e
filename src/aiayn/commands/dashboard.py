"""task=dashboard: a Weights & Biases workspace and report that compare the runs of a sweep."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from aiayn.commands.report import read_claims
from aiayn.files import write_text
from aiayn.report.rows import rows_of
from aiayn.runs.run import read_rows
from aiayn.terminal import visible


def dashboard(*rows: DictConfig) -> None:
    """Write both to `report/dashboard.json` in the sweep's folder, and save them on the server when there is a login.

    Raises:
        ValueError: without a sweep, without the logger's project, if a claim is malformed, or if the
            server fails.
    """
    if HydraConfig.get().mode is not RunMode.MULTIRUN:
        raise ValueError("task=dashboard compares the runs of a sweep; name one, as in sweep=table3.")
    runs = read_rows(rows)
    config, folder = max((run.config for run in runs), key=len), runs[0].folder.parent  # one that could be resolved
    if "wandb" not in config.get("logger", {}):
        raise ValueError("task=dashboard needs logger=wandb, which names the entity and the project of the runs.")
    claims = [claim.text for claim in read_claims(rows[0], rows_of(runs))]
    import wandb

    from aiayn.report.dashboard import build_report, build_workspace, specification

    logged_in = wandb.login(prompt=False, verify=False)
    entity, project = config["logger"]["wandb"]["entity"], config["logger"]["wandb"]["project"]
    if logged_in and not entity:
        with server():
            entity = wandb.Api().default_entity
    workspace = build_workspace(folder.name, runs, entity=entity or "", project=project)
    report = build_report(folder.name, runs, claims, entity=entity or "", project=project)
    file = folder / "report" / "dashboard.json"
    both = {"workspace": specification(workspace), "report": specification(report)}
    write_text(file, json.dumps(both, indent=2) + "\n")
    print(visible(file))
    if not logged_in:
        print("W&B has no login, so neither is on its server; `wandb login`, then the same command saves both.")
        return
    for built in (workspace, report):
        with server():
            print(built.save().url)


@contextmanager
def server() -> Iterator[None]:
    """Turn the errors of W&B's client into a line; they are of its transports' many kinds."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"the W&B server did not do it: {' '.join(str(error).split())}") from error
