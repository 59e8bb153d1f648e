"""task=translate: lines in, lines out, in order; a blank line stays blank."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from omegaconf import DictConfig

from aiayn.analysis.alignment import align
from aiayn.commands.inputs import checkpoint_files, evaluated_inference
from aiayn.data.parallel_text import read_lines
from aiayn.data.tokenizer import Vocabularies
from aiayn.files import whole
from aiayn.inference.ctranslate2_decoder import Exported
from aiayn.inference.translation import Translation, open_with, translator
from aiayn.model.model import Model
from aiayn.paths import output_of, path_of
from aiayn.schema import count_of

log = logging.getLogger(__name__)


def translate(cfg: DictConfig) -> None:
    """Translate `input` (null: standard input) to `output` (null: standard output), `window` lines at a time.

    What a window holds is sorted by length and decoded in batches; its translations are written before the next window
    is read, so memory does not grow with the input.

    Raises:
        ValueError: if an option has no meaning, the input is missing, or a line, named by its number, is not UTF-8.
    """
    if cfg.format not in ("text", "jsonl"):
        raise ValueError(f"format must be text or jsonl, got {cfg.format}.")
    size, n_best = count_of(cfg, "window"), count_of(cfg, "n_best")
    longest = count_of(cfg, "max_source_length") if cfg.max_source_length is not None else None
    source = path_of(cfg, "input") if cfg.input is not None else sys.stdin.buffer
    output_file = output_of(cfg)
    accelerator, trust = cfg.trainer.accelerator, cfg.trust
    loaded, model = open_with(cfg.backend, checkpoint_files(cfg.checkpoint), accelerator=accelerator, trust=trust)
    inference = evaluated_inference(cfg, loaded.config)
    if inference["temperature"] is None and n_best > inference["beam"]:
        raise ValueError(f"n_best must be at most inference.beam={inference['beam']}, got {n_best}; widen the beam.")
    longest = longest or loaded.config["data"]["cleaning"]["max_length"]  # which may be None, too: never
    searcher = translator(model, loaded.vocabularies, **inference, max_source_length=longest)
    aligned = cfg.format == "jsonl" and shows_attention(model, loaded.vocabularies)
    lines = enumerate(read_lines(source))
    if not output_file:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    with whole(output_file) if output_file else nullcontext(sys.stdout) as output:
        while window := list(islice(lines, size)):
            numbers, sentences = zip(*window, strict=True)
            found = searcher.n_best(sentences, n_best)
            if cfg.format == "jsonl":
                links = alignments(model, searcher.vocabularies, sentences, found) if aligned else [None] * len(found)
                output.writelines(f"{as_json(*line)}\n" for line in zip(sentences, found, links, strict=True))
            else:
                for number, translations in zip(numbers, found, strict=True):
                    output.writelines(f"{line}\n" for line in as_text(number, translations, n_best=n_best))
            output.flush()


def as_text(number: int, translations: Sequence[Translation], *, n_best: int) -> Iterator[str]:
    """The translation; of an n-best list a line each, as Moses and Marian write and read them.

    Four fields: the sentence's number, from 0; the text; the components of the score with their names, of which there
    is one, ln P; the score itself.
    """
    if n_best == 1:
        yield translations[0].text
        return
    for found in translations:
        yield f"{number} ||| {found.text} ||| logprob= {found.log_probability:.4f} ||| {found.score:.4f}"


def shows_attention(model: Model | Exported, vocabularies: Vocabularies) -> bool:
    """Whether alignments can be had; says why not."""
    if isinstance(model, Exported):
        return False
    try:
        align(model, vocabularies, ["."], [[]])
    except ValueError as error:
        log.warning("there are no alignments: %s", error)
        return False
    return True


def alignments(
    model: Any, vocabularies: Vocabularies, sentences: Sequence[str], found: Sequence[Sequence[Translation]]
) -> list[str | None]:
    """The words that the best translations have from where, as `0-0 1-2`; None where they were put together."""
    rows = [row for row, translations in enumerate(found) if translations[0].pieces <= 1]
    linked = align(model, vocabularies, [sentences[row] for row in rows], [found[row][0].tokens for row in rows])
    lines: list[str | None] = [None] * len(sentences)
    for row, links in zip(rows, linked, strict=True):
        lines[row] = " ".join(f"{source}-{target}" for source, target in links)
    return lines


def as_json(source: str, translations: Sequence[Translation], alignment: str | None) -> str:
    """One line: the best translation with its scores and alignment, and the whole list in `n_best`."""
    scored = [
        {"translation": found.text, "score": found.score, "log_probability": found.log_probability}
        for found in translations
    ]
    line = {"source": source, **scored[0], "alignment": alignment, "n_best": scored}
    return json.dumps(line, ensure_ascii=False)
