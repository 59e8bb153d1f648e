"""task=rescore: how probable a model finds given translations (forced decoding)."""

import json
import sys
from contextlib import nullcontext
from itertools import islice, zip_longest
from pathlib import Path

from omegaconf import DictConfig

from aiayn.data.parallel_text import read_lines
from aiayn.files import whole
from aiayn.inference import ensemble
from aiayn.inference.beam_search import length_penalty
from aiayn.inference.scoring import log_likelihoods
from aiayn.tasks.evaluate import checkpoint_files

WINDOW = 2048  # pairs in memory at once


def rescore(cfg: DictConfig) -> None:
    """Write a JSON line for each pair of `source` and `target`: `log_probability`, `score` and `tokens`.

    Raises:
        ValueError: if the files are not of one length, or one cannot be read.
    """
    loaded, model = ensemble.load(checkpoint_files(cfg.checkpoint), accelerator=cfg.trainer.accelerator)
    pairs = zip_longest(read_lines(Path(cfg.source)), read_lines(Path(cfg.target)))
    budget, alpha = cfg.inference.tokens_per_batch, cfg.inference.alpha
    read = 0
    with whole(Path(cfg.output)) if cfg.output else nullcontext(sys.stdout) as output:
        while window := list(islice(pairs, WINDOW)):
            for number, pair in enumerate(window, read):
                if None in pair:
                    shorter = cfg.source if pair[0] is None else cfg.target
                    raise ValueError(f"source and target must be line-aligned; {shorter} ends after {number} lines.")
            read += len(window)
            sums, tokens = log_likelihoods(model, loaded.tokenizer, *zip(*window, strict=True), tokens_per_batch=budget)
            for log_probability, length in zip(sums.tolist(), tokens.tolist(), strict=True):
                score = log_probability / length_penalty(length, alpha).item()
                print(json.dumps({"log_probability": log_probability, "score": score, "tokens": length}), file=output)
            output.flush()
