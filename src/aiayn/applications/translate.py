"""task=translate: lines in, lines out, in order; a blank line stays blank."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig

from aiayn.data.parallel_text import read_lines
from aiayn.files import whole
from aiayn.inference.translation import Translation, open_with, translator
from aiayn.tasks.evaluate import checkpoint_files


def translate(cfg: DictConfig) -> None:
    """Translate `input` (null: standard input) to `output` (null: standard output), `window` lines at a time.

    What a window holds is sorted by length and decoded in batches; its translations are written before the next window
    is read, so memory does not grow with the input.

    Raises:
        ValueError: if an option has no meaning, the input is missing, or a line, named by its number, is not UTF-8.
    """
    if cfg.format not in ("text", "jsonl"):
        raise ValueError(f"format must be text or jsonl, got {cfg.format}.")
    if cfg.window < 1:
        raise ValueError(f"window must be at least 1 line, got {cfg.window}.")
    files = checkpoint_files(cfg.checkpoint)
    loaded, model = open_with(cfg.backend, files, accelerator=cfg.trainer.accelerator)
    own = translator(model, loaded.tokenizer, **cfg.inference)
    lines = enumerate(read_lines(Path(cfg.input or "/dev/stdin")))
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    with whole(Path(cfg.output)) if cfg.output else nullcontext(sys.stdout) as output:
        while window := list(islice(lines, cfg.window)):
            numbers, sentences = zip(*window, strict=True)
            found = own.n_best(sentences, cfg.n_best)
            for number, sentence, translations in zip(numbers, sentences, found, strict=True):
                if cfg.format == "jsonl":
                    output.write(as_json(sentence, translations) + "\n")
                else:
                    output.writelines(f"{line}\n" for line in as_text(number, translations, n_best=cfg.n_best))
            output.flush()


def as_text(number: int, translations: Sequence[Translation], *, n_best: int) -> Iterator[str]:
    """The translation; of an n-best list a line each, as Moses writes them: `number ||| text ||| score`."""
    if n_best == 1:
        yield translations[0].text
        return
    for found in translations:
        yield f"{number} ||| {found.text} ||| {found.score:.4f}"


def as_json(source: str, translations: Sequence[Translation]) -> str:
    """One line: the best translation with its scores, and the whole list in `n_best`."""
    scored = [
        {"translation": found.text, "score": found.score, "log_probability": found.log_probability}
        for found in translations
    ]
    return json.dumps({"source": source, **scored[0], "n_best": scored}, ensure_ascii=False)
