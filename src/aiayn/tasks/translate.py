"""task=translate: lines in, lines out, in order; a blank line stays blank."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from aiayn.data.parallel_text import read_lines
from aiayn.inference import checkpoint
from aiayn.inference.translation import translate_sentences
from aiayn.tasks.evaluate import device_of, write_lines


def translate(cfg: DictConfig) -> None:
    """Translate `input` (null: standard input) to `output` (null: standard output).

    Raises:
        ValueError: if the input is missing or is not UTF-8, with the line's number.
    """
    loaded = checkpoint.read(Path(cfg.checkpoint))
    model = loaded.model().to(device_of(cfg.trainer.accelerator))
    sentences = list(read_lines(Path(cfg.input or "/dev/stdin")))
    translations = translate_sentences(model, loaded.tokenizer, sentences, **cfg.inference)
    if cfg.output:
        write_lines(Path(cfg.output), translations)
    else:
        sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())
