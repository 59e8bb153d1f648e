"""The weights that a run begins with when they are another run's: fine-tuning and transfer (`training.initialize`)."""

from pathlib import Path
from typing import Any

from aiayn.checkpoints import checkpoint
from aiayn.data.tokenizer import Vocabularies
from aiayn.files import digest
from aiayn.model.model import Model


def read(path: Path) -> tuple[Path, checkpoint.Checkpoint]:
    """The checkpoint that `training.initialize` names, and its file.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        file = checkpoint.located(path)
        return file, checkpoint.read(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"training.initialize={path}: {' '.join(str(error).split())}") from error


def initialize(model: Model, vocabularies: Vocabularies, path: Path) -> dict[str, Any]:
    """Give a model the weights of a run, its averaged ones, or of a checkpoint file.

    Args:
        model: Before its first step. Optimizer and schedule begin anew.
        vocabularies: The run's.
        path: `training.initialize`.

    Returns:
        What result.json says of it: the file, the optimizer steps behind it, and the hash of its content.

    Raises:
        ValueError: if it cannot be read, its vocabulary is another one, or a weight has another shape.
    """
    file, loaded = read(path)
    if loaded.vocabularies.hash != vocabularies.hash:
        kind = vocabularies.shared != loaded.vocabularies.shared
        also = f" and data.shared_vocabulary={str(loaded.vocabularies.shared).lower()}" if kind else ""
        raise ValueError(
            f"training.initialize={path} has another vocabulary, {loaded.vocabularies.hash[:16]}, than this run, "
            f"{vocabularies.hash[:16]}, so its embeddings stand for other pieces; give data.tokenizer={path}{also} too."
        )
    ours, theirs = model.state_dict(), loaded.weights
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        here, there = (tuple(state[name].shape) if name in state else None for state in (ours, theirs))
        if here != there:
            hint = "model.position.max_length" if "position" in name else "model.*"
            raise ValueError(
                f"training.initialize={path} does not fit: {name} is {there or 'missing'} there and "
                f"{here or 'missing'} here; set {hint} as it was."
            )
    model.load_state_dict(theirs)
    return {"file": str(file.absolute()), "step": loaded.step, "sha256": digest(checkpoint.weights_file(file))}
