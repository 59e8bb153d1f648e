"""Dev BLEU from real decoding, never teacher-forced, and a table of sample translations."""

from typing import Any, cast

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.evaluation.metric import chrf, sacre_bleu
from aiayn.inference.translation import translator
from aiayn.model.transformer import Transformer


class TranslationQuality(Callback):
    """Translate the dev set at every validation, each rank its share, and log `dev/bleu` and `dev/chrf`.

    Args:
        inference: The `inference` config.
        samples: How many translations go to loggers that take tables.
    """

    def __init__(self, inference: dict[str, Any], *, samples: int) -> None:
        self.inference = inference
        self.samples = samples

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        corpus = trainer.datamodule.corpus  # type: ignore[attr-defined]
        sources, references = corpus.text("dev")
        hypotheses = [""] * len(sources)
        share = slice(trainer.global_rank, None, trainer.world_size)
        with trainer.precision_plugin.forward_context():
            own = translator(cast(Transformer, pl_module.model), corpus.tokenizer, **self.inference)
            hypotheses[share] = own.translate(sources[share], silent=not trainer.is_global_zero)
        if trainer.world_size > 1:
            shares: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(shares, hypotheses[share])
            for rank, found in enumerate(shares):
                hypotheses[rank :: trainer.world_size] = found
        scores = {"dev/bleu": sacre_bleu(hypotheses, [references]), "dev/chrf": chrf(hypotheses, [references])}
        pl_module.log_dict({key: score.value for key, score in scores.items()}, batch_size=1)
        if trainer.is_global_zero:
            rows = [list(row) for row in zip(sources, references, hypotheses, strict=True)][: self.samples]
            for logger in trainer.loggers:
                if hasattr(logger, "log_table"):
                    logger.log_table("dev/translations", columns=["source", "reference", "translation"], data=rows)
