"""task=rescore: how probable a model finds given translations (forced decoding)."""

import json
import sys
from contextlib import nullcontext
from itertools import islice

from omegaconf import DictConfig

from aiayn.commands.inputs import checkpoint_files, evaluated_inference
from aiayn.data.parallel_text import aligned_lines
from aiayn.files import whole
from aiayn.inference import ensemble
from aiayn.inference.beam_search import length_penalty
from aiayn.inference.scoring import log_likelihoods
from aiayn.paths import output_of, path_of

WINDOW = 2048  # pairs in memory at once


def rescore(cfg: DictConfig) -> None:
    """Write a JSON line for each pair of `source` and `target`: `log_probability`, `score` and `tokens`.

    A target is cut by the tokenizer, in one of the ways in which the text can be cut. An entry of an n-best list may
    have been found in another one; then its probability here is not that of the list.

    Raises:
        ValueError: if the files are not of one length, or one cannot be read.
    """
    output_file = output_of(cfg)
    loaded, model = ensemble.load(
        checkpoint_files(cfg.checkpoint), accelerator=cfg.trainer.accelerator, trust=cfg.trust
    )
    pairs = aligned_lines(path_of(cfg, "source"), path_of(cfg, "target"))
    inference = evaluated_inference(cfg, loaded.config)
    budget, penalty = inference["tokens_per_batch"], [inference["alpha"], inference["beta"]]
    with whole(output_file) if output_file else nullcontext(sys.stdout) as output:
        while window := list(islice(pairs, WINDOW)):
            sums, tokens = log_likelihoods(
                model, loaded.vocabularies, *zip(*window, strict=True), tokens_per_batch=budget
            )
            for log_probability, length in zip(sums.tolist(), tokens.tolist(), strict=True):
                score = log_probability / length_penalty(length, *penalty).item()
                print(json.dumps({"log_probability": log_probability, "score": score, "tokens": length}), file=output)
            output.flush()
