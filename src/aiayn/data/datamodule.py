"""The LightningDataModule: token-budget batches of a prepared corpus, each rank its share (section 5.1)."""

from lightning.pytorch import LightningDataModule

from aiayn.data.batching import BatchLoader, PairDataset, TokenBatchSampler
from aiayn.data.corpus import Corpus

DEV_TOKENS = 4096  # source or target tokens of a dev batch on one device


class ParallelDataModule(LightningDataModule):
    """Batches for training and for the dev set.

    Args:
        corpus: The prepared corpus.
        tokens_per_batch: Source and target tokens of one optimizer step over all devices, at most.
        seed: Of the order of the pairs.
        workers: Processes that make batches; 0 makes them in the training process.
    """

    def __init__(self, corpus: Corpus, *, tokens_per_batch: int, seed: int, workers: int) -> None:
        super().__init__()
        self.corpus = corpus
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.workers = workers

    def train_dataloader(self) -> BatchLoader:
        assert self.trainer is not None
        return self._loader(
            "train", self.tokens_per_batch, accumulation=self.trainer.accumulate_grad_batches, shuffle=True
        )

    def val_dataloader(self) -> BatchLoader:
        assert self.trainer is not None
        tokens = max(DEV_TOKENS, self.corpus.pairs("dev").longest) * self.trainer.world_size
        return self._loader("dev", tokens, accumulation=1, shuffle=False)

    def _loader(self, split: str, tokens_per_batch: int, *, accumulation: int, shuffle: bool) -> BatchLoader:
        assert self.trainer is not None
        pairs = self.corpus.pairs(split)
        sampler = TokenBatchSampler(
            pairs.source.lengths + 1,  # with EOS
            pairs.target.lengths + 1,
            tokens_per_batch=tokens_per_batch,
            world_size=self.trainer.world_size,
            rank=self.trainer.global_rank,
            accumulation=accumulation,
            seed=self.seed,
            shuffle=shuffle,
        )
        pin = self.trainer.strategy.root_device.type == "cuda"
        return BatchLoader(PairDataset(pairs), sampler, workers=self.workers, pin_memory=pin)
