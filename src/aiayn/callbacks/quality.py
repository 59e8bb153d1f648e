"""Scores on dev from real decoding, never teacher-forced, and a table of sample translations."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from aiayn.evaluation.metric import Metric, counted
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.inference.translation import translator
from aiayn.model.model import Model


class TranslationQuality(Callback):
    """Translate the dev set at every validation, each replica its share, and log the objective and chrF: `dev/bleu`.

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
        self.every = metrics
        chosen = {key: metric for key, metric in metrics.items() if key in (objective, "chrf")}
        self.metrics = {key: metric for key, metric in chosen.items() if not isinstance(metric, Perplexity)}
        self.language = language
        self.samples = samples

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Translate a sentence and count it by each metric: what they lack shows now, and not hours later."""
        problem = trainer.datamodule.problem  # type: ignore[attr-defined]
        sources, references = problem.text("dev")[0], problem.references("dev")
        for key, metric in self.every.items():
            if not isinstance(metric, Perplexity):
                # What refuses is left out of an evaluation, unless it is measured in training.
                refused = nullcontext() if key in self.metrics else suppress(ValueError)
                with explained(f"metrics.{key} cannot count a sentence"), refused:
                    counted(metric, references[:1], [references[:1]], self.language)
        if self.metrics:
            own = translator(
                cast(Model, pl_module.model), problem.vocabularies, **{**self.inference, "max_extra_length": 1}
            )
            with explained("the model trains, and cannot be decoded with"), self._decoding(trainer):
                own.translate([min(filter(str.strip, sources), key=len, default="")])

    def _decoding(self, trainer: Trainer) -> ExitStack:
        """As the run computes; but each step of a search has other shapes, for which layers would be compiled anew."""
        stack = ExitStack()
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(trainer.precision_plugin.forward_context())
        return stack

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.metrics:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        problem, replica = data.problem, data.replica
        sources, references = problem.text("dev")[0], problem.references("dev")
        with self._decoding(trainer):
            own = translator(cast(Model, pl_module.model), problem.vocabularies, **self.inference)
            decoded = own.translate(sources[replica.share], silent=not trainer.is_global_zero)
        share = problem.outputs("dev", decoded, replica.share)
        hypotheses = [""] * len(sources)
        for index, found in enumerate(replica.gather(share)):
            hypotheses[index :: replica.count] = found
        for key, metric in self.metrics.items():
            score, _ = counted(metric, hypotheses, [references], self.language)
            pl_module.log(f"dev/{key}", score.value, batch_size=1)
        if trainer.is_global_zero:
            rows = [list(row) for row in zip(sources, references, hypotheses, strict=True)][: self.samples]
            for logger in trainer.loggers:
                if hasattr(logger, "log_table"):
                    logger.log_table("dev/translations", columns=["source", "reference", "translation"], data=rows)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say what an error that nobody foresaw is about.

    Raises:
        ValueError: in the place of any other exception.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error
