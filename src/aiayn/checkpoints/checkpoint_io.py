"""Lightning's door to checkpoint files: complete or absent, and read as data.

Lightning's own writer passes through the system's temporary folder, so on another file system its last step is a copy
that a kill can cut short (fsspec/filesystem_spec:fsspec/implementations/local.py, `LocalFileOpener.commit`).
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from aiayn.checkpoints import archive, checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Save and load through `aiayn.checkpoints.checkpoint`."""

    def save_checkpoint(self, checkpoint_: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write the file under a temporary name and rename it; `storage_options` are further entries of it.

        Raises:
            ValueError: if a callback's state is no plain data, with which the file could not be read again.
        """
        for name, state in checkpoint_.get("callbacks", {}).items():
            kept = BytesIO()
            try:
                torch.save(state, kept)
                torch.load(BytesIO(kept.getvalue()), weights_only=True)
            except Exception as error:
                raise ValueError(
                    f"the callback {name} keeps what no checkpoint can hold; let its state_dict give numbers, texts, "
                    f"tensors, lists and dicts of them ({archive.line(error)[:120]})."
                ) from error
        checkpoint.write(Path(path), {**checkpoint_, **(storage_options or {})})

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read tensors and plain containers only, whatever `weights_only` says."""
        return checkpoint.read_raw(Path(path))
