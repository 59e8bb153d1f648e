"""task=score: score translations in a file against references in files, without a model."""

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from aiayn.arguments import check_groups
from aiayn.data.parallel_text import read_lines
from aiayn.evaluation.evalb_report import report
from aiayn.evaluation.metric import LanguageError, counted, ter_last, usable
from aiayn.evaluation.metrics.evalb import Evalb
from aiayn.files import write_text
from aiayn.paths import output_of, path_of
from aiayn.terminal import visible

log = logging.getLogger(__name__)

SHARE = 0.02  # of the lines that are looked at with suspicion
# What no plain text looks like, by what makes plain text of it.
MARKS = {
    "SentencePiece's pieces": (re.compile("\u2581"), "put them together, as spm_decode does"),
    "pieces of BPE": (re.compile("@@(?: |$)"), "put them together: sed -E 's/@@( |$)//g'"),
    "pieces of WordPiece": (re.compile(r" ##\w"), "put them together: sed 's/ ##//g'"),
    "text escaped for HTML": (re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);"), "unescape it"),
}


def score(cfg: DictConfig) -> None:
    """Print each score of `hypotheses` against `references` with its signature; `output` has them as JSON.

    With `format=evalb` EVALB's own report is printed instead, its messages of errors on standard error as there.

    Raises:
        ValueError: if a file cannot be read, is empty, or has not as many lines as the others, or if a metric refuses
            the text; `output` is not written then. A metric that has no rules for the language is left out with a
            warning, unless it is the only one.
    """
    if not isinstance(cfg.language, str | None):
        raise ValueError(f"language must be an ISO code, as in language=de, got {cfg.language!r}.")
    check_groups(cfg, "metrics")
    metrics = instantiate(cfg.metrics)
    files = list(cfg.references) if OmegaConf.is_list(cfg.references) else [cfg.references]
    if not files:
        raise ValueError("references=[] names no file; give one, or one for each set of references.")
    if cfg.format not in (None, "evalb") or (cfg.format and not isinstance(metrics.get("evalb"), Evalb)):
        raise ValueError(f"format must be null, or evalb with metrics=[evalb], got {cfg.format}.")
    output = output_of(cfg)
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
    for file, lines in zip([cfg.hypotheses, *files], [hypotheses, *references], strict=True):
        warn_of_marks(str(file), lines)
    scores = {}
    found = usable(metrics, cfg.language, left_out=LanguageError if len(metrics) > 1 else ())
    if not found:
        raise ValueError(
            f"none of metrics=[{','.join(metrics)}] can score language={cfg.language}; choose bleu or chrf."
        )
    if cfg.format:
        for line, is_message in report(metrics["evalb"], hypotheses, references):
            print(visible(line), file=sys.stderr if is_message else sys.stdout)
    for key, metric in ter_last(found).items() if output or not cfg.format else ():
        scores[key], _ = counted(metric, hypotheses, references, cfg.language)
        if not cfg.format:
            print(scores[key], flush=True)
    if output:
        content = {
            "hypotheses": cfg.hypotheses,
            "references": files,
            "language": cfg.language,
            "sentences": len(hypotheses),
            "scores": {key: asdict(one) for key, one in scores.items()},
        }
        write_text(output, json.dumps(content, indent=2) + "\n")


def warn_of_marks(file: str, lines: Sequence[str]) -> None:
    """Say so if a share of the lines is not plain text, of which scores are."""
    for what, (mark, remedy) in MARKS.items():
        found = sum(mark.search(line) is not None for line in lines)
        if found > SHARE * len(lines):
            log.warning(
                "%s: %d of %d lines look like %s, and scores are of plain text; %s",
                file,
                found,
                len(lines),
                what,
                remedy,
            )
