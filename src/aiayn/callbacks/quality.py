"""Scores on dev from real decoding, never teacher-forced, and a table of sample translations."""

from collections.abc import Mapping
from typing import Any, cast

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.evaluation.metric import Metric, counted
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.inference.translation import translator
from aiayn.model.model import Model


class TranslationQuality(Callback):
    """Translate the dev set at every validation, each rank its share, and log the objective and chrF: `dev/bleu`.

    Perplexity needs no translations: the module logs it.

    Args:
        inference: The `inference` config.
        metrics: By the key of their scores.
        objective: The key of the one that decides what is best.
        language: Of the references, as an ISO code; None where it is unknown.
        samples: How many translations go to loggers that take tables.
    """

    def __init__(
        self,
        inference: dict[str, Any],
        *,
        metrics: Mapping[str, Metric],
        objective: str,
        language: str | None,
        samples: int,
    ) -> None:
        self.inference = inference
        chosen = {key: metric for key, metric in metrics.items() if key in (objective, "chrf")}
        self.metrics = {key: metric for key, metric in chosen.items() if not isinstance(metric, Perplexity)}
        self.language = language
        self.samples = samples

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for metric in self.metrics.values():
            metric.signature(self.language)  # what it refuses, a missing package for one, shows before the training

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        corpus = trainer.datamodule.corpus  # type: ignore[attr-defined]
        sources, references = corpus.text("dev")
        hypotheses = [""] * len(sources)
        share = slice(trainer.global_rank, None, trainer.world_size)
        with trainer.precision_plugin.forward_context():
            own = translator(cast(Model, pl_module.model), corpus.vocabularies, **self.inference)
            hypotheses[share] = own.translate(sources[share], silent=not trainer.is_global_zero)
        if trainer.world_size > 1:
            shares: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(shares, hypotheses[share])
            for rank, found in enumerate(shares):
                hypotheses[rank :: trainer.world_size] = found
        for key, metric in self.metrics.items():
            score, _ = counted(metric, hypotheses, [references], self.language)
            pl_module.log(f"dev/{key}", score.value, batch_size=1)
        if trainer.is_global_zero:
            rows = [list(row) for row in zip(sources, references, hypotheses, strict=True)][: self.samples]
            for logger in trainer.loggers:
                if hasattr(logger, "log_table"):
                    logger.log_table("dev/translations", columns=["source", "reference", "translation"], data=rows)
