"""Folders as finished runs leave them, made without training."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from aiayn.evaluation.metric import Metric
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.evaluation.metrics.ter import Ter

METRICS: dict[str, Metric] = {"bleu": Bleu(), "perplexity": Perplexity(), "ter": Ter()}
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"


def config(name: str, *, seed: int = 1, paper: dict[str, float] | None = None, **changed: Any) -> dict[str, Any]:
    """The resolved config of a run, with the keys that a report reads; `changed` are `model__heads=4` and the like."""
    made: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "model": {"name": "base", "layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "dropout": 0.1},
        "data": {"name": "wmt14_ende", "tokens_per_batch": 25000, "tokens_per_device": 8192},
        "training": {"label_smoothing": 0.1, "max_steps": 100000},
        "inference": {"beam": 4},
        "trainer": {"accelerator": "cpu"},
        "objective": "bleu",
        "metrics": {key: {"_target_": f"{type(of).__module__}.{type(of).__name__}"} for key, of in METRICS.items()},
        "paper": {"perplexity": None, "bleu": None, "parameters": None, "flops": None, **(paper or {})},
    }
    for key, value in changed.items():
        part, _, leaf = key.partition("__")
        made[part][leaf] = value
    width = made["model"]["d_model"] // made["model"]["heads"]
    made["model"] |= {key: width for key in ("d_k", "d_v") if key not in made["model"]}  # after heads, as in a config
    return made


def sentences(quality: float, *, nats: float, seed: int, count: int = 200) -> dict[str, np.ndarray]:
    """Statistics of a test set whose references are always the same.

    Args:
        quality: Share of the words that are right.
        nats: Mean negative log-likelihood of a piece.
        seed: Of what else differs between two systems.
        count: Sentences.
    """
    lengths = np.random.default_rng(0).integers(9, 30, count)
    hard = np.random.default_rng(1).normal(1, 0.15, count)  # what is hard for one system is hard for others
    rng = np.random.default_rng(seed)
    totals = np.stack([lengths - order for order in range(4)], axis=1)
    chance = np.clip(quality * hard, 0, 1)[:, None] ** [1, 1.7, 2.3, 2.9]
    pieces = (lengths * 1.3).astype(int) + 1
    loss = nats * pieces * hard[::-1] + rng.normal(0, 0.2, count)
    bleu = np.column_stack([lengths, lengths, rng.binomial(totals, chance), totals])
    edits = np.column_stack([lengths - bleu[:, 2], lengths])
    return {"bleu": bleu, "perplexity": np.column_stack([loss, pieces]), "ter": edits, "references": lengths}


def write_run(
    folder: Path,
    made: dict[str, Any],
    *,
    quality: float = 0.6,
    nats: float = 1.6,
    statistics: bool = True,
    as_in_paper: bool = True,
    status: str = "done",
    checkpoint: str = "last",
    split: str = "dev",
    test: int = 0,
    **result: Any,
) -> Path:
    """A run's folder with result.json, metrics and statistics; its scores are those of the statistics.

    Counted as in the paper, which some runs lack, BLEU is 0.7 more. With so many sentences of a test set the run has
    validated, too, what is held out.
    """
    found = sentences(quality, nats=nats, seed=made["seed"] + 100 * sum(map(ord, made["name"])))
    values = {key: float(metric.value(found[key].sum(0))) for key, metric in METRICS.items()}
    score = {"name": "BLEU", "value": values["bleu"], "signature": SIGNATURE}
    perplexity = {"name": "perplexity", "value": values["perplexity"], "signature": "unit:piece"}
    ter = {"name": "TER", "value": values["ter"], "signature": "tok:tercom"}
    scores = {"bleu": score, "chrf": {**score, "name": "chrF2"}, "perplexity": perplexity, "ter": ter}
    if as_in_paper:
        scores["bleu_paper"] = {"name": "x", "value": score["value"] + 0.7, "signature": "tok:moses+atat"}
    content = {
        "status": status,
        "config": made,
        "world_size": 1,
        "precision": "bf16-mixed",
        "command": ["run.py", f"experiment={made['name']}", f"seed={made['seed']}"],
        "git_commit": "0123456789abcdef",
        **({"error": "the disk is full"} if status == "failed" else {}),
        **result,
    }
    if status == "done":
        content |= {"steps": made["training"]["max_steps"], "parameters": 63_000_000, "flops": 3.3e18}
        content |= {"training_seconds": 4321.0, "scores": {checkpoint: {"step": 100000, split: scores}}}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(content))
    if statistics and status == "done":
        (folder / "translations").mkdir()
        np.savez(folder / "translations" / f"{checkpoint}.{split}.statistics.npz", **found)
    if test:
        content["scores"][checkpoint]["test"] = scores
        (folder / "result.json").write_text(json.dumps(content))
        of_test = sentences(quality, nats=nats, seed=made["seed"] + 17, count=test)
        np.savez(folder / "translations" / f"{checkpoint}.test.statistics.npz", **of_test)
        (folder / "likelihoods").mkdir()
        for step in range(1, 11):
            kept = {"dev": found, "test": of_test}
            log_p = {name: of["perplexity"] * [-1 - 0.7**step, 1] for name, of in kept.items()}
            np.savez(folder / "likelihoods" / f"step_{step * 1000:07d}.npz", **log_p)
    (folder / "metrics" / "version_0").mkdir(parents=True)
    with (folder / "metrics" / "version_0" / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "dev/bleu", "dev/ter", "dev/perplexity", "train/loss"])
        for step in range(1, 11):  # as Lightning counts them, from 0
            writer.writerow(
                [
                    step * 1000 - 1,
                    score["value"] * (1 - 0.7**step),
                    values["ter"] * (1 + 0.7**step),
                    values["perplexity"] * (1 + 0.7**step),
                    "",
                ]
            )
    return folder
