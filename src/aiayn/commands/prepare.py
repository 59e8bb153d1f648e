"""task=prepare: download, clean, train the tokenizer, encode; once for all runs with the same data settings."""

import logging
import os
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from aiayn.arguments import check_groups
from aiayn.data import corpus
from aiayn.data.corpus import Corpus
from aiayn.data.tokenizer import Tokenizer

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
        tokenizer=given_tokenizer(cfg),
    )


def given_tokenizer(cfg: DictConfig) -> Tokenizer | None:
    """The tokenizer that `data.tokenizer` names, whose size goes before `data.vocab_size`; None where it names none.

    Raises:
        ValueError: if it cannot be read, or is not one of ours.
    """
    if (name := cfg.data.tokenizer) is None:
        return None
    path = Path(name)
    try:
        if path.suffix == ".model":
            tokenizer = Tokenizer(path.read_bytes())
        else:
            from aiayn.checkpoints import checkpoint  # with torch, which a corpus can do without

            tokenizer = checkpoint.stored_tokenizer(checkpoint.read_raw(path), path)
    except (OSError, ValueError) as error:
        raise ValueError(f"data.tokenizer={path}: {' '.join(str(error).split())}") from error
    if tokenizer.vocab_size != cfg.data.vocab_size:
        log.warning(
            "data.vocab_size=%d is not used: data.tokenizer=%s has %d pieces",
            cfg.data.vocab_size,
            path,
            tokenizer.vocab_size,
        )
    return tokenizer


def prepare(cfg: DictConfig) -> None:
    """Prepare the corpus and say where it is."""
    check_groups(cfg, "data")
    prepared = prepare_corpus(cfg)
    log.info("%s is prepared: %s", cfg.data.name, prepared.path)
