"""An experiment platform for the Transformer of "Attention Is All You Need" (Vaswani et al., 2017)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiayn.inference.translation import Translator


def load(*paths: str | Path, backend: str = "torch", accelerator: str = "auto", **inference: Any) -> "Translator":
    """Open a finished run for a notebook: `load("outputs/runs/x").translate(["A dog runs."])`.

    Args:
        paths: Run folders or checkpoint files; several make an ensemble.
        backend: "ctranslate2" for a folder that `task=export` wrote for it.
        accelerator: "cpu", or "auto" for the GPU when there is one.
        inference: `beam=1`, `alpha=...`: what is not to be as in the run's own config.

    Raises:
        ValueError: if there is no checkpoint, or the vocabularies of several differ.
    """
    from aiayn.inference import translation  # here, because importing `aiayn` must not load torch

    return translation.load(*paths, backend=backend, accelerator=accelerator, **inference)
