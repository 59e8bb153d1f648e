"""task=prepare: download, clean, train the tokenizers, encode; once for all runs with the same data settings."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from aiayn.arguments import check_groups
from aiayn.data import corpus
from aiayn.data.corpus import Corpus
from aiayn.data.tokenizer import Tokenizer, Vocabularies

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
        shared_vocabulary=data.shared_vocabulary,
        vocabularies=given_vocabularies(cfg),
    )


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
            from aiayn.checkpoints import checkpoint  # with torch, which a corpus can do without

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


def asked_sizes(data: Mapping[str, Any]) -> dict[str, int]:
    """`Vocabularies.sizes` of those that a `data` config asks for; the text may have no so many pieces."""
    size = data["vocab_size"]
    return {"vocab_size": size} if data["shared_vocabulary"] else {"vocab_size": size, "source_vocab_size": size}


def prepare(cfg: DictConfig) -> None:
    """Prepare the corpus and say where it is."""
    check_groups(cfg, "data")
    prepared = prepare_corpus(cfg)
    log.info("%s is prepared: %s", cfg.data.name, prepared.path)
