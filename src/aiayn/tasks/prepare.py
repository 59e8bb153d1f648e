"""task=prepare: download, clean, train the tokenizer, encode; once for all runs with the same data settings."""

import logging
import os
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from aiayn.arguments import check_groups
from aiayn.data import corpus
from aiayn.data.corpus import Corpus

log = logging.getLogger(__name__)


def prepare_corpus(cfg: DictConfig) -> Corpus:
    """The prepared corpus of a config, found by the hash of its inputs or built."""
    data = cfg.data
    return corpus.prepare(
        instantiate(data.corpus, _convert_="all"),
        folder=Path(cfg.outputs) / "prepared",
        vocab_size=data.vocab_size,
        character_coverage=data.character_coverage,
        byte_fallback=data.byte_fallback,
        tokenizer_sample=data.tokenizer_sample,
        cleaning=instantiate(data.cleaning),
        workers=os.cpu_count() or 1 if data.prepare_workers is None else data.prepare_workers,
    )


def prepare(cfg: DictConfig) -> None:
    """Prepare the corpus and say where it is."""
    check_groups(cfg, "data")
    prepared = prepare_corpus(cfg)
    log.info("%s is prepared: %s", cfg.data.name, prepared.path)
