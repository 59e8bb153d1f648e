"""The LightningDataModule: token-budget batches of a prepared corpus, each replica its share (section 5.1)."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from aiayn.data.batching import PairDataset, StepLoader, TokenBatchSampler
from aiayn.data.corpus import Corpus
from aiayn.data.mixture import Mixture
from aiayn.data.replica import Replica

DEV_TOKENS = 4096  # source or target tokens of a dev batch on one device


class ParallelDataModule(LightningDataModule):
    """Batches for training, and of all that is held out.

    Args:
        corpus: The prepared corpus.
        held_out: Splits that are validated.
        mixture: How often an epoch has each training pair.
        tokens_per_batch: Source and target tokens of one optimizer step over all devices, at most.
        accumulation: Micro-batches of a replica in a step.
        replica: Whose share is wanted.
        seed: Of the order of the pairs.
        problem: Whose batches they are, for callbacks that decode.
        workers: Processes that make batches; 0 makes them in the training process.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        held_out: Sequence[str],
        mixture: Mixture,
        tokens_per_batch: int,
        accumulation: int,
        replica: Replica,
        seed: int,
        problem: Any,
        workers: int,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.held_out = held_out
        self.mixture = mixture
        self.tokens_per_batch = tokens_per_batch
        self.accumulation = accumulation
        self.replica = replica
        self.seed = seed
        self.problem = problem
        self.workers = workers

    def train_dataloader(self) -> StepLoader:
        return self._loader(
            "train", self.tokens_per_batch, mixture=self.mixture, accumulation=self.accumulation, shuffle=True
        )

    def val_dataloader(self) -> list[StepLoader]:
        return [self._held_out(split) for split in self.held_out]

    def _held_out(self, split: str) -> StepLoader:
        tokens = max(DEV_TOKENS, self.corpus.pairs(split).longest) * self.replica.count
        return self._loader(split, tokens, accumulation=1, shuffle=False)

    def _loader(
        self, split: str, tokens_per_batch: int, *, accumulation: int, shuffle: bool, mixture: Mixture | None = None
    ) -> StepLoader:
        assert self.trainer is not None
        pairs = self.corpus.pairs(split)
        sampler = TokenBatchSampler(
            pairs.source.lengths + 1,  # with EOS
            pairs.target.lengths + 1,
            tokens_per_batch=tokens_per_batch,
            mixture=mixture,
            replica=self.replica,
            accumulation=accumulation,
            seed=self.seed,
            shuffle=shuffle,
        )
        pin = self.trainer.strategy.root_device.type == "cuda"
        return StepLoader(PairDataset(pairs), sampler, workers=self.workers, pin_memory=pin)
