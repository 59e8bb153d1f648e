"""task=heads: a table and a picture of what each attention head does, and of the score that is lost without it."""

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.box import SIMPLE_HEAD
from rich.table import Table

from aiayn.analysis.figures import draw_heads
from aiayn.analysis.heads import losses, measures
from aiayn.analysis.weights import KINDS, attentions
from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import (
    chosen_folder,
    described,
    evaluated_data,
    evaluated_problem,
    objective_of_text,
    run_of,
)
from aiayn.evaluation.metric import Score, digits
from aiayn.files import write_text
from aiayn.inference.translation import translator
from aiayn.paths import path_of
from aiayn.problems.translation import Translation
from aiayn.report.formats import markdown_table
from aiayn.schema import check_ranges
from aiayn.terminal import Terminal, visible
from aiayn.training.tracking import loggers

log = logging.getLogger(__name__)

SIGNIFICANT = 0.05
# What is shown of each figure: how it is called, and how it is written; what is lost, with the score's own decimals.
FIGURES = {
    "entropy": ("entropy", ".2f"),
    "distance": ("distance", ".2f"),
    "confidence": ("confidence", ".2f"),
    "lost": ("lost", "+.{}f"),
    "p": ("p", ".4f"),
    "p_holm": ("p (Holm)", ".4f"),
}
COLUMNS = ["attention", "layer", "head", *(name for name, _ in FIGURES.values())]


def heads(cfg: DictConfig) -> None:
    """Measure the heads of `run` on `data.split`, print a table, and write it and a picture to `output`.

    Raises:
        ValueError: if there is no checkpoint, nothing to translate, `output` is a file, or the model's attention is of
            a class that has no heads to see.
    """
    if cfg.sentences is not None and not (type(cfg.sentences) is int and cfg.sentences >= 1):
        raise ValueError(f"sentences must be at least 1, or null for all, got {cfg.sentences}; give a whole number.")
    check_ranges({"inference": cfg.inference})
    file = checkpoint.located(path_of(cfg, "run").absolute())
    run = run_of(file)
    folder = chosen_folder(cfg.output, run / "heads" / f"{file.stem}.{cfg.data.split}")
    loaded = checkpoint.read(file)
    _, metric = objective_of_text(cfg, loaded.config)
    data = evaluated_data(cfg, loaded.config, file)
    problem = evaluated_problem(cfg, loaded.config, data, cfg.inference)
    if not isinstance(problem, Translation):
        raise ValueError(f"run={cfg.run} decodes nothing that could get worse without a head; name another.")
    sources, targets = (side[: cfg.sentences] for side in problem.text(data.split))
    references = problem.references(data.split)[: cfg.sentences]
    model = loaded.model(cfg.trainer.accelerator, trust=cfg.trust)
    attentions(model, "weights", "heads", "output")  # what has none of these is refused before the long work
    encoded = loaded.vocabularies.source.encode(sources), loaded.vocabularies.target.encode(targets)
    figures = measures(model, *encoded, tokens_per_batch=cfg.inference.tokens_per_batch)
    searcher = translator(model, loaded.vocabularies, **cfg.inference)

    def measure() -> tuple[Score, np.ndarray]:
        decoded = searcher.translate(sources)
        outputs = problem.outputs(data.split, decoded, slice(len(sources)))
        return problem.counted(metric, decoded, outputs, references)

    score, lost = losses(model, metric, measure)
    figures |= lost

    what = f"{data.name} {data.split}, {len(sources):,} sentences, {described(cfg.inference)}: {score}"
    places = digits([score.value])
    told = [what, *notes(figures, places=places)]
    of_this = {
        "checkpoint": str(file),
        "step": loaded.step,
        "data": data.name,
        "split": data.split,
        "sentences": len(sources),
        "inference": OmegaConf.to_container(cfg.inference),
    }
    write(folder, figures, told, score=score, of_this=of_this)
    show(figures, told, places=places)
    if "wandb" in cfg.logger:
        log_to_wandb(cfg, run, loaded.config, figures=figures, picture=folder / "heads.png")
    print(visible(folder))


def records(figures: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Each head's place, layers and heads counted from 1, and its figures."""
    names = list(KINDS.values())
    return [
        {"attention": names[kind], "layer": layer + 1, "head": head + 1}
        | {name: float(values[kind, layer, head]) for name, values in figures.items()}
        for kind, layer, head in np.argwhere(~np.isnan(figures["p"])).tolist()
    ]


def cells(record: Mapping[str, Any], *, places: int) -> list[str]:
    """A head's line of the table, losses to so many decimals; a star is behind those that are significant."""
    place = [str(record[name]) for name in ("attention", "layer", "head")]
    shown = {name: format(record[name], style.format(places)) for name, (_, style) in FIGURES.items()}
    shown["lost"] += "*" if record["p_holm"] < SIGNIFICANT else " "
    return [*place, *shown.values()]


def notes(figures: Mapping[str, np.ndarray], *, places: int) -> list[str]:
    """What is to know about the table, a sentence each."""
    found = [record for record in records(figures) if record["p_holm"] < SIGNIFICANT]
    found.sort(key=lambda record: -record["lost"])
    names = ", ".join(f"{of['attention']} {of['layer']}.{of['head']} ({of['lost']:+.{places}f})" for of in found)
    p = figures["p"][~np.isnan(figures["p"])]
    return [
        f"{len(found)} of {p.size} heads change the score significantly (*: p < {SIGNIFICANT} after Holm's correction)"
        f"{': ' if found else ''}{names}.",
        f"Without the correction {np.sum(p < SIGNIFICANT)} would; {SIGNIFICANT * p.size:.1f} are expected by chance "
        "when no head matters.",
        "Entropy (nats), distance (positions) and confidence are means over all positions of a pass over the "
        "references; confidence is without EOS; the distance of cross-attention is from the diagonal, in source "
        "positions. What is lost, by how much the score gets worse, is measured "
        "by translating with the head's context set to zero, without training again; p is of a paired bootstrap over "
        "sentences, two-sided.",
    ]


def show(figures: Mapping[str, np.ndarray], told: Sequence[str], *, places: int) -> None:
    """Print the table."""
    console, table = Terminal(), Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)  # 80 characters
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    last = figures["p"].shape[2]
    for record in records(figures):
        table.add_row(*cells(record, places=places), end_section=record["head"] == last)
    console.print(table)
    for line in told:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def write(
    folder: Path, figures: Mapping[str, np.ndarray], told: Sequence[str], *, score: Score, of_this: Mapping[str, Any]
) -> None:
    """Write heads.md, heads.csv, heads.png and heads.json."""
    found = records(figures)
    lines = [cells(record, places=digits([score.value])) for record in found]
    table = markdown_table(COLUMNS, [True] + [False] * (len(COLUMNS) - 1), lines)
    write_text(folder / "heads.md", "\n\n".join([table, *told]) + "\n")
    rows = io.StringIO()
    writer = csv.DictWriter(rows, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    write_text(folder / "heads.csv", rows.getvalue())
    drawn = {}
    for name, (title, _) in FIGURES.items():
        if not name.startswith("p"):
            written = np.full(figures[name].shape, "", dtype=object)
            written[~np.isnan(figures[name])] = [line[COLUMNS.index(title)].strip() for line in lines]
            drawn[title] = figures[name], written
    draw_heads(folder / "heads.png", drawn, kinds=list(KINDS.values()))
    content = {**of_this, "score": asdict(score), "heads": found}
    write_text(folder / "heads.json", json.dumps(content, indent=2) + "\n")


def log_to_wandb(
    cfg: DictConfig, run: Path, config: Mapping[str, Any], *, figures: Mapping[str, np.ndarray], picture: Path
) -> None:
    """Add the table and the picture to the run's own W&B run, or to a new one if it has none.

    Args:
        cfg: Of this command; says whether to be offline.
        run: The run's folder.
        config: The run's own; says where in W&B the run is, if it was logged there.
        figures: Of the heads.
        picture: A PNG file.
    """
    here: Any = OmegaConf.to_container(cfg, resolve=True)
    theirs = config["logger"].get("wandb")
    theirs = theirs if isinstance(theirs, Mapping) else {}
    place = {key: theirs.get(key) for key in ("entity", "project", "name", "group")}
    # Text alone: a stranger's file may have chosen it, and what is in settings may be called.
    settings = here["logger"]["wandb"] | {key: value for key, value in place.items() if isinstance(value, str)}
    settings["save_dir"] = str(run)
    known = {key: here[key] for key in ("paper", "scale")}  # which older runs lack
    with loggers({"wandb": settings}, run, {**known, **config}) as (logger,):
        found = records(figures)
        data = [list(record.values()) for record in found]
        logger.log_table("heads/table", columns=list(found[0]), data=data)  # type: ignore[attr-defined]
        logger.log_image("heads/picture", [str(picture)])  # type: ignore[attr-defined]
