"""Dev BLEU from real decoding, never teacher-forced, and a table of sample translations."""

from typing import Any, cast

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.data.batching import Batch
from aiayn.evaluation.bleu import chrf, sacre_bleu
from aiayn.inference.beam_search import search
from aiayn.model.transformer import Transformer


class TranslationQuality(Callback):
    """Decode the dev set at every validation, each rank its share, and log `dev/bleu` and `dev/chrf`.

    Args:
        inference: The `inference` config.
        samples: How many translations go to loggers that take tables.
    """

    def __init__(self, inference: dict[str, Any], *, samples: int = 8) -> None:
        self.inference = inference
        self.samples = samples
        self.hypotheses: dict[int, list[int]] = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        with trainer.precision_plugin.forward_context():
            found = search(
                cast(Transformer, pl_module.model),
                batch.source,
                beam=self.inference["beam"],
                alpha=self.inference["alpha"],
                max_extra_length=self.inference["max_extra_length"],
            )
        for index, hypotheses in zip(batch.indices.tolist(), found, strict=True):
            if index >= 0:  # the filler of a rank without pairs
                self.hypotheses[index] = hypotheses[0].tokens

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        shares: list[Any] = [self.hypotheses]
        if trainer.world_size > 1:
            shares = [None] * trainer.world_size
            dist.all_gather_object(shares, self.hypotheses)
        decoded = {index: tokens for share in shares for index, tokens in share.items()}
        self.hypotheses = {}
        data = trainer.datamodule  # type: ignore[attr-defined]
        sources, references = data.corpus.text("dev")
        hypotheses = data.corpus.tokenizer.decode([decoded[index] for index in range(len(references))])
        found = {"dev/bleu": sacre_bleu(hypotheses, references), "dev/chrf": chrf(hypotheses, references)}
        pl_module.log_dict({key: score.value for key, score in found.items()}, batch_size=1)
        if trainer.is_global_zero:
            rows = list(zip(sources, references, hypotheses, strict=True))[: self.samples]
            for logger in trainer.loggers:
                if hasattr(logger, "log_table"):
                    logger.log_table(
                        "dev/translations",
                        columns=["source", "reference", "translation"],
                        data=[list(row) for row in rows],
                        step=trainer.global_step,
                    )
