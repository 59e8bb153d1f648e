"""Sentences into sentences: prepared pairs, batches of both sides, search, and scores of text (sections 5 and 6)."""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from aiayn.checkpoints import checkpoint
from aiayn.cost.counting import mean_pair_flops
from aiayn.data.corpus import Corpus, prepare
from aiayn.data.datamodule import ParallelDataModule
from aiayn.data.mixture import MAIN, Mixture, texts_of, weights_of
from aiayn.data.parallel_text import split_text
from aiayn.data.replica import Replica
from aiayn.data.step_size import StepSize
from aiayn.data.tokenizer import Tokenizer, Vocabularies
from aiayn.evaluation.metric import Metric, Score, counted, panel, score_of, usable
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.inference.scoring import log_likelihoods
from aiayn.inference.translation import translator
from aiayn.model.model import Model
from aiayn.problems.problem import Evaluation, Problem
from aiayn.terminal import Terminal

log = logging.getLogger(__name__)


class Translation(Problem):
    """Pairs of a source and a target sentence; `data` says which.

    Attributes:
        corpus: The prepared pairs; None until they are.
    """

    corpus: Corpus | None = None
    output = "translation"  # as it is called where it is shown

    def asked_sizes(self) -> dict[str, int]:
        """Of the vocabularies that the data name, or ask for; the text may have no so many pieces."""
        texts_of(self.cfg.data)  # refuses settings that no text follows from
        if self.given is not None:
            return self.given.sizes
        size = self.cfg.data.vocab_size
        joint = self.cfg.data.shared_vocabulary
        return {"vocab_size": size} if joint else {"vocab_size": size, "source_vocab_size": size}

    @cached_property
    def given(self) -> Vocabularies | None:
        """Those that `data.tokenizer` names."""
        return given_vocabularies(self.cfg)

    def prepare(self) -> None:
        """Clean, learn the vocabularies, encode; once for all runs with the same data settings."""
        data = self.cfg.data
        texts = texts_of(data)
        self.corpus = prepare(
            texts.pop(MAIN),
            mixture=texts,
            folder=Path(self.cfg.outputs) / "prepared",
            vocab_size=data.vocab_size,
            character_coverage=data.character_coverage,
            byte_fallback=data.byte_fallback,
            tokenizer_sample=data.tokenizer_sample,
            cleaning=instantiate(data.cleaning),
            workers=os.cpu_count() or 1 if data.prepare_workers is None else data.prepare_workers,
            shared_vocabulary=data.shared_vocabulary,
            vocabularies=self.given,
        )

    @property
    def prepared(self) -> Corpus:
        """The prepared pairs."""
        assert self.corpus is not None
        return self.corpus

    @property
    def mixture(self) -> Mixture:
        """How often an epoch has each training pair."""
        return self.prepared.mixture(weights_of(self.cfg.data))

    @property
    def folder(self) -> Path:
        """See `Problem`."""
        return self.prepared.path

    @property
    def vocabularies(self) -> Vocabularies:
        """See `Problem`."""
        return self.prepared.vocabularies

    def splits(self) -> list[str]:
        """See `Problem`."""
        return self.prepared.splits()

    def size(self, split: str) -> int:
        """See `Problem`."""
        return len(self.prepared.pairs(split))

    def longest(self, split: str) -> int:
        """Of either side, with EOS."""
        return self.prepared.pairs(split).longest

    def step_size(self, tokens_per_batch: int, *, fits_corpus: bool) -> StepSize:
        """See `Problem`."""
        mixture = self.mixture
        step = StepSize.of(self.prepared.pairs("train"), tokens_per_batch, fits_corpus=fits_corpus, mixture=mixture)
        if self.cfg.data.mixture:
            shares = zip(mixture.counts, mixture.sizes, self.prepared.statistics["corpora"], strict=True)
            said = ", ".join(f"{count:,} of the {size:,} pairs of {key}" for count, size, key in shares)
            log.info("an epoch has %d steps: %s", step.steps, said)
        return step

    def batches(self, step: StepSize, *, accumulation: int, replica: Replica) -> ParallelDataModule:
        """See `Problem`."""
        return ParallelDataModule(
            self.prepared,
            held_out=self.held_out(),
            mixture=self.mixture,
            tokens_per_batch=step.tokens_per_batch,
            accumulation=accumulation,
            replica=replica,
            seed=self.cfg.seed,
            problem=self,
            workers=self.cfg.data.loader_workers,
        )

    def flops(self, model: Model, target_tokens: int) -> float:
        """Of so many target tokens, with the source tokens that belong to them, as `pair_flops` counts them."""
        pairs, data, mean = self.prepared.pairs("train"), self.cfg.data, self.mixture.mean
        source, target = pairs.source.lengths + 1, pairs.target.lengths + 1  # with EOS
        micro_batch = min(data.tokens_per_batch, data.tokens_per_device or data.tokens_per_batch)
        each = mean_pair_flops(
            model, source=source, target=target, pairs=max(1, int(micro_batch // mean(target))), mean=mean
        )
        return each * target_tokens / mean(target)

    @property
    def language(self) -> str | None:
        """Of what is scored; text of an unknown language is tokenised as English."""
        if self.cfg.data.target_language is None:
            log.warning("data.target_language is not set: %s is tokenised as English.", self.cfg.data.name)
        return self.cfg.data.target_language or "en"

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """What the model reads and what it is to write, as it was prepared, or else as the data have it."""
        return self.corpus.text(split) if self.corpus else split_text(self.cfg.data, split)

    def references(self, split: str) -> list[str]:
        """What outputs are scored against."""
        return self.text(split)[1]

    def outputs(self, split: str, decoded: Sequence[str], rows: slice = slice(None)) -> list[str]:
        """What decoded text of some rows of a split is to a reader, and to the metrics: here the text itself."""
        return list(decoded)

    def counted(
        self, metric: Metric, decoded: Sequence[str], outputs: list[str], references: list[str]
    ) -> tuple[Score, np.ndarray]:
        """Score and counts of a split's outputs."""
        return counted(metric, outputs, [references], self.language)

    def evaluate(
        self, model: Model, vocabularies: Vocabularies, split: str, *, metrics: Mapping[str, Metric], name: str
    ) -> Evaluation:
        """Decode a split and score what comes out."""
        sources, targets = self.text(split)
        if not sources:
            raise ValueError(f"{name} has no sentence to translate; is the file empty?")
        references, language = self.references(split), self.language
        metrics, decoded = usable(metrics, language), list[str]()
        if any(not isinstance(metric, Perplexity) for metric in metrics.values()):
            searcher = translator(model, vocabularies, **self.cfg.inference)
            decoded = searcher.translate(sources, name=name, silent=False)
        outputs = self.outputs(split, decoded) if decoded else []

        def count(metric: Metric) -> tuple[Score, np.ndarray]:
            if not isinstance(metric, Perplexity):
                return self.counted(metric, decoded, outputs, references)
            budget = self.cfg.inference.tokens_per_batch
            found = log_likelihoods(model, vocabularies, sources, targets, tokens_per_batch=budget)
            counts = np.column_stack([-found[0], found[1]])
            return score_of(metric, counts, metric.signature(language)), counts

        return Evaluation(outputs, references, *panel(metrics, count, name=name, objective=self.cfg.objective))

    def show(self, console: Terminal, split: str, hypotheses: Sequence[str]) -> None:
        """See `Problem`."""
        for source, reference, output in zip(self.text(split)[0], self.references(split), hypotheses, strict=False):
            for name, text in (("source", source), ("reference", reference), (self.output, output)):
                console.print(f"{chr(10) if name == 'source' else ''}{name:<11}  {text}", highlight=False)


def given_vocabularies(cfg: DictConfig) -> Vocabularies | None:
    """Those that `data.tokenizer` names, whose sizes go before `data.vocab_size`; None where it names none.

    Raises:
        ValueError: if they cannot be read, are not ours, or are not shared as `data.shared_vocabulary` says.
    """
    if (name := cfg.data.tokenizer) is None:
        return None
    path = Path(name)
    try:
        if path.suffix == ".model":
            found = Vocabularies.joint(Tokenizer(path.read_bytes()))
        else:
            found = checkpoint.stored_vocabularies(checkpoint.read_raw(path), path)
    except (OSError, ValueError) as error:
        raise ValueError(f"data.tokenizer={path}: {' '.join(str(error).split())}") from error
    if found.shared != cfg.data.shared_vocabulary:
        kind = "one tokenizer for both sides" if found.shared else "a tokenizer for each side"
        raise ValueError(
            f"data.tokenizer={path} is {kind}; set data.shared_vocabulary={str(found.shared).lower()}, or name another."
        )
    if set(found.sizes.values()) != {cfg.data.vocab_size}:
        log.warning(
            "data.vocab_size=%d is not used: data.tokenizer=%s has %s pieces",
            cfg.data.vocab_size,
            path,
            " and ".join(str(size) for size in reversed(found.sizes.values())),
        )
    return found
