"""An experiment platform for the Transformer of "Attention Is All You Need" (Vaswani et al., 2017)."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiayn.inference.translation import Translator


def load(
    *paths: str | Path,
    backend: str | None = None,
    accelerator: str = "auto",
    trust: Collection[str] = (),
    **inference: Any,
) -> "Translator":
    """Open a finished run for a notebook: `load("outputs/runs/x").translate(["A dog runs."])`.

    Args:
        paths: Run folders, checkpoint files, folders of `task=export`; several make an ensemble.
        backend: "torch"; "ctranslate2", on the CPU, which exports a checkpoint first where it is not exported; None:
            what the path was made for.
        accelerator: "cpu", or "auto" for the GPU when there is one.
        trust: Packages of your own, whose classes a checkpoint may name: `["mypackage"]`.
        inference: Keys of the `inference` config that are not to be the first checkpoint's: `beam`, `alpha`, ...;
            `temperature`, which draws samples; and `max_source_length`: longer sources, in tokens, are translated in
            pieces.

    Raises:
        ValueError: if there is no checkpoint, it names code that is not trusted, the vocabularies differ, or the
            backend does not exist or cannot read it.
    """
    from aiayn.files import absolute
    from aiayn.inference import translation  # here, because importing `aiayn` must not load torch

    files = map(absolute, paths)
    return translation.load(*files, backend=backend, accelerator=accelerator, trust=trust, **inference)
