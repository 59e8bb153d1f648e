"""task=evaluate: decode a split with a checkpoint, score it, keep translations and scores."""

import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from aiayn.arguments import check_groups
from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import (
    checkpoint_files,
    described,
    evaluated_data,
    evaluated_inference,
    evaluated_metrics,
    split_text,
)
from aiayn.data.corpus import Corpus
from aiayn.data.tokenizer import Vocabularies
from aiayn.evaluation.metric import Metric, Score, counted, panel, score_of, usable
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.files import replacing, write_text
from aiayn.identity import made_of
from aiayn.inference import ensemble
from aiayn.inference.scoring import log_likelihoods
from aiayn.inference.translation import translator
from aiayn.model.model import Model
from aiayn.runs.run import checkpoint_paths
from aiayn.runs.run_folder import RunFolder
from aiayn.terminal import Terminal, visible
from aiayn.trust import targets

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Translations of a split and what they score.

    Attributes:
        hypotheses: The translations; none where no metric looks at text.
        references: What they are scored against.
        scores: By the metrics' keys.
        counts: Of each sentence, which the scores are the values of; likewise.
    """

    hypotheses: list[str]
    references: list[str]
    scores: dict[str, Score]
    counts: dict[str, np.ndarray]

    def as_dict(self) -> dict[str, Any]:
        """Plain containers for result.json."""
        scored: dict[str, Any] = {key: asdict(score) for key, score in self.scores.items()}
        return {**scored, "sentences": len(self.references)}

    def write(self, stem: Path) -> None:
        """Keep the translations as `stem.txt`, and what the significance of differences is told from beside them.

        `stem.statistics.npz` has the counts by the metrics' keys, and a checksum of each reference as `references`,
        which tells whether two systems were measured on the same ones.
        """
        if self.hypotheses:
            write_text(stem.with_name(f"{stem.name}.txt"), "".join(f"{line}\n" for line in self.hypotheses))
        checksums = np.array([zlib.crc32(line.encode()) for line in self.references], dtype=np.uint32)
        with replacing(stem.with_name(f"{stem.name}.statistics.npz")) as place, place.open("wb") as file:
            np.savez_compressed(file, references=checksums, **self.counts)  # type: ignore[arg-type]


def evaluate_sentences(
    model: Model,
    vocabularies: Vocabularies,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    inference: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    language: str | None,
    name: str,
) -> Evaluation:
    """Translate `sources` and score the translations against `references`.

    Args:
        model: In evaluation mode.
        vocabularies: Those it was trained with.
        sources: Plain text.
        references: As many.
        inference: The `inference` config.
        metrics: By the keys that their scores get.
        language: Of the references; unknown ones are tokenised as English.
        name: What is translated, for the progress bar.
    """
    if not sources:
        raise ValueError(f"{name} has no sentence to translate; is the file empty?")
    if language is None:
        log.warning("data.target_language is not set: %s is tokenised as English.", name)
    references, hypotheses = list(references), []
    metrics = usable(metrics, language := language or "en")
    if any(not isinstance(metric, Perplexity) for metric in metrics.values()):
        hypotheses = translator(model, vocabularies, **inference).translate(sources, name=name, silent=False)

    def count(metric: Metric) -> tuple[Score, np.ndarray]:
        if not isinstance(metric, Perplexity):
            return counted(metric, hypotheses, [references], language)
        budget = inference["tokens_per_batch"]
        found = log_likelihoods(model, vocabularies, sources, references, tokens_per_batch=budget)
        counts = np.column_stack([-found[0], found[1]])
        return score_of(metric, counts, metric.signature(language)), counts

    return Evaluation(hypotheses, references, *panel(metrics, count, name=name))


def evaluate_splits(
    loaded: checkpoint.Checkpoint, corpus: Corpus, folder: RunFolder, *, name: str, metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run on the dev and test sets, and keep its translations as `name.split.txt`."""
    config = folder.config
    own = list(targets(config["model"]))  # what the run's own config names is its author's code
    model = loaded.model(config["trainer"]["accelerator"], trust=own)
    results: dict[str, Any] = {"step": loaded.step}
    for split in corpus.splits():
        if split == "train":
            continue
        result = evaluate_sentences(
            model,
            loaded.vocabularies,
            *corpus.text(split),
            inference=config["inference"],
            metrics=metrics,
            language=config["data"]["target_language"],
            name=f"{name}/{split}",
        )
        results[split] = result.as_dict()
        result.write(folder.path / "translations" / f"{name}.{split}")
    return results


def show(folder: RunFolder, corpus: Corpus, *, samples: int = 4) -> None:
    """Print what a finished run has come to: scores with signatures, a few translations, speed, and its folder."""
    result, console = folder.result, Terminal()
    sets = {
        f"{name} {split}": scored
        for name, splits in result["scores"].items()
        for split, scored in splits.items()
        if split != "step"
    }
    known = {key: score for scored in sets.values() for key, score in scored.items() if key != "sentences"}
    table = Table("", *sets)
    for key, score in known.items():
        table.add_row(
            score["name"], *(f"{scored[key]['value']:.2f}" if key in scored else "" for scored in sets.values())
        )
    console.print(table)
    for score in known.values():
        console.print(f"{score['name']}: {score['signature']}", soft_wrap=True, highlight=False)
    split = "test" if "test" in corpus.splits() else "dev"
    translations = (folder.path / "translations" / f"averaged.{split}.txt").read_text(encoding="utf-8").split("\n")
    for source, reference, translation in list(zip(*corpus.text(split), translations, strict=False))[:samples]:
        console.print(f"\nsource       {source}", highlight=False)
        console.print(f"reference    {reference}", highlight=False)
        console.print(f"translation  {translation}", highlight=False)
    console.print(
        f"\n{result['parameters']:,} parameters, {result['steps']:,} steps, {result['target_tokens']:,} target tokens "
        f"in {result['training_seconds']:.0f} s: {result['tokens_per_second']:,.0f} tokens/s"
        f"{', {:.2e} FLOPs'.format(result['flops']) if 'flops' in result else ''}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)


def evaluate(cfg: DictConfig) -> None:
    """Decode `data.split` with `checkpoint`, print its scores, and write evaluation.json and the translations."""
    check_groups(cfg, "metrics")
    files = checkpoint_files(cfg.checkpoint)
    name = files[0].stem if len(files) == 1 else "ensemble"
    loaded, model = ensemble.load(files, accelerator=cfg.trainer.accelerator, trust=cfg.trust)
    data = evaluated_data(cfg, loaded.config, files[0])
    sources, references = split_text(data)
    inference = evaluated_inference(cfg, loaded.config)
    result = evaluate_sentences(
        model,
        loaded.vocabularies,
        sources,
        references,
        inference=inference,
        metrics=evaluated_metrics(cfg, loaded.config),
        language=data.target_language or loaded.config["data"]["target_language"],
        name=f"{data.name} {data.split}",
    )
    folder = Path(cfg.run_dir)
    result.write(folder / "translations" / f"{name}.{data.split}")
    of_this = {"data": OmegaConf.to_container(data, resolve=True), "inference": inference}
    config = {**loaded.config, **of_this, "checkpoint": checkpoint_paths(cfg.checkpoint), "name": cfg.name}
    content = {
        "status": "done",
        "config": config,
        "made_of": made_of(config, own=True),
        "composed": OmegaConf.to_container(cfg, resolve=True),  # tells a sweep that this very job is done
        "scores": {name: {"step": loaded.step, data.split: result.as_dict()}},
    }
    write_text(folder / "evaluation.json", json.dumps(content, indent=2) + "\n")
    searched = described(inference)
    log.info("checkpoint %s, step %d, %s", checkpoint_paths(cfg.checkpoint), loaded.step, searched)
    for score in result.scores.values():
        print(visible(f"{data.name} {data.split} {score}"))
    log.info("%d translations in %s", len(sources), folder)
