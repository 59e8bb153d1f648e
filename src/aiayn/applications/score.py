"""task=score: score translations in a file against references in files, without a model."""

import json
from dataclasses import asdict

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from aiayn.data.parallel_text import read_lines
from aiayn.files import write_text
from aiayn.schema import path_of


def score(cfg: DictConfig) -> None:
    """Print each score of `hypotheses` against `references` with its signature; `output` has them as JSON.

    Raises:
        ValueError: if a file cannot be read, is empty, or has not as many lines as the others, or if a metric refuses
            the text.
    """
    if not isinstance(cfg.language, str | None):
        raise ValueError(f"language must be an ISO code, as in language=de, got {cfg.language!r}.")
    metrics = instantiate(cfg.metrics)
    files = list(cfg.references) if OmegaConf.is_list(cfg.references) else [cfg.references]
    if not files:
        raise ValueError("references=[] names no file; give one, or one for each set of references.")
    output = path_of(cfg, "output") if cfg.output is not None else None
    hypotheses = list(read_lines(path_of(cfg, "hypotheses")))
    references = [list(read_lines(path_of({"references": file}, "references"))) for file in files]
    for file, lines in zip(files, references, strict=True):
        if len(lines) != len(hypotheses):
            raise ValueError(
                f"hypotheses and references must be line-aligned, got {len(hypotheses)} lines in {cfg.hypotheses} and "
                f"{len(lines)} in {file}."
            )
    if not hypotheses:
        raise ValueError(f"hypotheses={cfg.hypotheses} is empty; give a file with at least one line.")
    for metric in metrics.values():  # what one of them lacks, such as the language, shows before minutes have passed
        metric(hypotheses[:1], [lines[:1] for lines in references], language=cfg.language)
    scores = {key: metric(hypotheses, references, language=cfg.language) for key, metric in metrics.items()}
    if output:
        content = {
            "hypotheses": cfg.hypotheses,
            "references": files,
            "language": cfg.language,
            "sentences": len(hypotheses),
            "scores": {key: asdict(found) for key, found in scores.items()},
        }
        write_text(output, json.dumps(content, indent=2) + "\n")
    for found in scores.values():
        print(found)
