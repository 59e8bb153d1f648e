"""task=parse: sentences in, constituency trees out, in order; a blank line stays blank."""

import sys
from contextlib import nullcontext
from itertools import islice

from omegaconf import DictConfig

from aiayn.commands.inputs import checkpoint_files, evaluated_inference
from aiayn.data.parallel_text import read_lines
from aiayn.data.trees import drawn
from aiayn.files import whole
from aiayn.inference.translation import open_with, translator
from aiayn.paths import output_of, path_of
from aiayn.schema import count_of


def parse(cfg: DictConfig) -> None:
    """Parse `input` (null: standard input), words with spaces between them, to `output` (null: standard output).

    Raises:
        ValueError: if an option has no meaning, the input is missing, a line, named by its number, is not UTF-8, or the
            model was not trained on trees.
    """
    if cfg.format not in ("text", "pretty"):
        raise ValueError(f"format must be text or pretty, got {cfg.format}.")
    size, output_file = count_of(cfg, "window"), output_of(cfg)
    source = path_of(cfg, "input") if cfg.input is not None else sys.stdin.buffer
    loaded, model = open_with(
        cfg.backend, checkpoint_files(cfg.checkpoint), accelerator=cfg.trainer.accelerator, trust=cfg.trust
    )
    parser = translator(model, loaded.vocabularies, **evaluated_inference(cfg, loaded.config))
    lines = read_lines(source)
    if not output_file:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    with whole(output_file) if output_file else nullcontext(sys.stdout) as output:
        while window := list(islice(lines, size)):
            for tree in parser.parse(window):
                output.write(f"{tree if cfg.format == 'text' else drawn(tree)}\n")
            output.flush()
