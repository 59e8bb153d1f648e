"""task=plan: what a run, or each row of a sweep, will cost."""

from omegaconf import DictConfig


def plan(*rows: DictConfig) -> None:
    """Name the rows."""
    for row in rows:
        print(row.name, row.run_dir)
