"""task=compare: two systems on one test set: scores with p-values, and where they differ.

Reads the translations that a run, or task=evaluate, left in its folder, and the text from the corpus that its config
names; nothing is decoded.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from aiayn.commands.inputs import described, evaluated_data, evaluated_metrics, objective_of_text
from aiayn.data.corpora.treebank import Trees
from aiayn.data.parallel_text import ParallelText, read_lines, split_text
from aiayn.evaluation.comparison import (
    Bucket,
    differences,
    most_apart,
    occurrences,
    score_by_length,
    sentence_scores,
    words,
    words_by_frequency,
)
from aiayn.evaluation.metric import Metric, Score, counted, digits
from aiayn.evaluation.metrics.mended import Mended
from aiayn.evaluation.metrics.perplexity import Perplexity
from aiayn.files import write_text
from aiayn.identity import leaves
from aiayn.paths import output_of, path_of
from aiayn.report.formats import markdown, markdown_table
from aiayn.report.table import MINUS, Column, Notes, Section, cells
from aiayn.runs.run import Run
from aiayn.schema import count_of
from aiayn.stored_config import checked
from aiayn.terminal import Terminal

log = logging.getLogger(__name__)

P_VALUES = (
    "p: the chance of such a difference between equal systems, by paired bootstrap (one-tailed) and paired approximate "
    "randomisation (two-sided), both sacreBLEU's. It is of sentences alone: to train again changes the difference too."
)
LOWER = " The lower {}, the better."
OF_DECODING = (Perplexity, Mended)  # what finished outputs do not show
BY_CHRF = "By chrF of the sentence: where there is no common 4-gram, BLEU of a sentence is what its smoothing says."


@dataclass(frozen=True)
class System:
    """One of the two.

    Attributes:
        name: Where it is and of which checkpoint.
        data: Config of the data that it translated.
        corpus: Built from it.
        sources: Of the split.
        references: As many.
        hypotheses: Its translations, as many.
        metrics: What they are scored by, the objective first.
        score: By the objective.
    """

    name: str
    data: DictConfig
    corpus: ParallelText
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    metrics: list[Metric]
    score: Score

    @property
    def language(self) -> str | None:
        """Of the translations."""
        return self.data.get("target_language")


def compare(cfg: DictConfig) -> None:
    """Print how the translations of `split` in the folders `a` and `b` differ, and write it to `output`.

    Raises:
        ValueError: if one of them is not finished or lacks the translations, both are the same, or they are of
            different sentences.
    """
    examples, most = (count_of(cfg, key, least=0) for key in ("examples", "training_sentences"))
    output = output_of(cfg)
    one, other = read_system(cfg, "a"), read_system(cfg, "b")
    if one.name == other.name:
        raise ValueError(f"a and b are both {one.name}; name another folder, or give b_checkpoint=last.")
    if (one.sources, one.references) != (other.sources, other.references):
        raise ValueError(f"a and b translate different sentences: {differing(one, other)}; compare on one test set.")
    if (mine := one.score.signature) != (theirs := other.score.signature):
        log.warning("%s was counted as %s in a and as %s in b; here as in a", one.score.name, mine, theirs)
    on = f"{cfg.data.split} of {one.data.name}, {len(one.sources)} sentences"
    head = [("a", one.name), ("b", other.name), ("on", on)]
    log.info("comparing %d translations", len(one.sources))
    sections = [
        scores(one, other),
        *by_sentence(one, other, examples=examples),
        by_length(one, other),
    ]
    if not isinstance(one.corpus, Trees):
        sections.append(by_frequency(one, other, most=most))
    if output:
        write_text(output, to_markdown(head, sections))
    show(head, sections)


def read_system(cfg: DictConfig, key: str) -> System:
    """What `a` or `b` names.

    Raises:
        ValueError: as `finished`, or if there are no such translations, or they are of another text.
    """
    run, checkpoint = finished(cfg, key)
    split = cfg.data.split
    file = run.folder / "translations" / f"{checkpoint}.{split}.txt"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in file.parent.glob("*.txt"))) or "none"
        raise ValueError(
            f"{key}={cfg[key]} has no translations {checkpoint}.{split} (there are: {there}); choose others with "
            f"{key}_checkpoint= and data.split=, or name a folder of task=evaluate checkpoint=... data.split={split}."
        )
    stored = checked(run.config)
    data = evaluated_data(cfg, stored)
    corpus = instantiate(data.corpus, _convert_="all")
    sources, references = split_text(data, data.split)
    if isinstance(corpus, Trees):
        references = list(corpus.trees(data.split))
    hypotheses = list(read_lines(file))
    objective, metric = objective_of_text(cfg, stored)
    problem = f"{len(hypotheses)} translations for {len(references)} sentences"
    if len(hypotheses) == len(references):
        score, _ = counted(metric, hypotheses, [references], data.get("target_language"))
        problem = misfit(score, run.score(checkpoint, split, objective))
    if problem:
        raise ValueError(
            f"{file} does not translate {split} of {data.name} as it is now: {problem}; name the data that were "
            "translated, as in data=text data.test.source=..., or run task=evaluate again."
        )
    metrics = list({objective: metric, **evaluated_metrics(cfg, stored)}.values())
    metrics = [metric for metric in metrics if not isinstance(metric, OF_DECODING)]
    searched = run.config.get("inference") or {}
    name = ", ".join(filter(None, [str(run.folder), f"checkpoint {checkpoint}", described(searched)]))
    return System(name, data, corpus, sources, references, hypotheses, metrics, score)


def finished(cfg: DictConfig, key: str) -> tuple[Run, str]:
    """The run or evaluation that `a` or `b` names, and the checkpoint whose translations are meant.

    Raises:
        ValueError: if it is none, is not done, or is an evaluation of another split.
    """
    run = Run.read(path_of(cfg, key).resolve(), row=key)
    if run.state != "done":
        raise ValueError(
            f"{key}={cfg[key]} must be a finished run's folder, or task=evaluate's, but its state is {run.state}; "
            "finish it, or name another."
        )
    if not OmegaConf.select(OmegaConf.create(run.config), "data.corpus._target_"):
        raise ValueError(
            f"{key}={cfg[key]} says not what it was trained on: its config has no data.corpus._target_; name another."
        )
    checkpoint, split = run.measured(str(cfg[f"{key}_checkpoint"]), cfg.data.split)
    if split != cfg.data.split:
        raise ValueError(
            f"{key}={cfg[key]} is an evaluation of {split}, not of {cfg.data.split}; give data.split={split}, or "
            "another folder."
        )
    return run, checkpoint


def misfit(score: Score, before: float | None) -> str:
    """Why the references cannot be those that gave the score before, as with another test set; empty if they can."""
    if before is None or math.isclose(score.value, before, rel_tol=1e-4, abs_tol=1e-9):
        return ""
    return f"{score.name} is {score.value:.6g} with it, and {before:.6g} in the folder's result"


def differing(one: System, other: System) -> str:
    """In which settings the data of two systems differ."""

    def settings(data: DictConfig) -> dict[str, object]:
        keys = ("name", "source_language", "target_language", "corpus")
        return dict(leaves({"data": {key: data.get(key) for key in keys}}))

    mine, theirs = settings(one.data), settings(other.data)
    keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
    return ", ".join(f"{key} is {mine.get(key)} in a and {theirs.get(key)} in b" for key in keys)


def scores(one: System, other: System) -> Section:
    """Scores of the whole split, with p-values."""
    found = differences(one.metrics, one.hypotheses, other.hypotheses, one.references, language=one.language)
    columns = [
        Column("score", [difference.name for difference in found], of_text=True),
        *figures([(difference.scores, digits(difference.scores)) for difference in found]),
        Column("p, bootstrap", [f"{difference.bootstrap:.4f}" for difference in found]),
        Column("p, randomisation", [f"{difference.randomisation:.4f}" for difference in found]),
        Column("signature", [difference.signature for difference in found], of_text=True),
    ]
    lower = [metric.name for metric in one.metrics if not metric.higher_is_better]
    return Section("Scores", columns, P_VALUES + LOWER.format(" and ".join(lower)) * bool(lower))


def by_sentence(one: System, other: System, *, examples: int) -> list[Section]:
    """How often each one is better, and the sentences in which they are furthest apart."""
    metric, trees = one.metrics[0], isinstance(one.corpus, Trees)
    name = metric.name if trees else "chrF"
    mine, theirs = (
        metric.value(metric.counts(system.hypotheses, [one.references], None))
        if trees
        else sentence_scores(system.hypotheses, one.references)
        for system in (one, other)
    )
    equal = sum(a == b for a, b in zip(one.hypotheses, other.hypotheses, strict=True))
    counts = [int((mine > theirs).sum()), int((mine < theirs).sum()), int((mine == theirs).sum()), equal]
    heads = ("a is better", "b is better", "ties", "of them the same translation")
    columns = [Column(head, [str(count)]) for head, count in zip(heads, counts, strict=True)]
    sections = [Section("Sentence by sentence", columns, f"By {name} of the tree." if trees else BY_CHRF)]
    for better, gains in (("a", mine - theirs), ("b", theirs - mine)):
        if numbers := most_apart(gains, examples):
            lines = [line for number in numbers for line in example(one, other, number, mine=mine, theirs=theirs)]
            heads = ("line", name, "", "text")
            columns = [
                Column(head, list(texts), of_text=head in ("", "text"))
                for head, texts in zip(heads, zip(*lines, strict=True), strict=True)
            ]
            sections.append(Section(f"Where {better} is better by most", columns))
    return sections


def example(
    one: System, other: System, number: int, *, mine: np.ndarray, theirs: np.ndarray
) -> list[tuple[str, str, str, str]]:
    """Four lines of a table: source, reference, and both translations."""
    return [
        (str(number + 1), "", "source", one.sources[number]),
        ("", "", "reference", one.references[number]),
        ("", f"{mine[number]:.1f}", "a", one.hypotheses[number]),
        ("", f"{theirs[number]:.1f}", "b", other.hypotheses[number]),
    ]


def by_length(one: System, other: System) -> Section:
    """The objective on short and on long sources."""
    metric, systems = one.metrics[0], [one.hypotheses, other.hypotheses]
    found = score_by_length(metric, one.sources, one.references, systems, language=one.language)
    return Section(f"{metric.name} by the source's length", buckets("words", "sentences", found))


def by_frequency(one: System, other: System, *, most: int) -> Section:
    """How much of the references' rare and frequent words each system has."""
    title = "Words of the references that the translations have, %"
    if most == 0 or "train" not in one.corpus.splits():
        return Section(title, [], "There is no training text to count words in.")
    text = one.corpus.pairs("train")
    vocabulary = {word for reference in one.references for word in words(reference)}
    try:
        frequencies = occurrences((target for _, target in islice(text, most)), vocabulary)
        counted = f"the first {most:,} training sentences" if next(text, None) else "all training sentences"
    except ValueError as error:  # a finished run's training text may be gone
        return Section(title, [], str(error))
    found = words_by_frequency(one.references, [one.hypotheses, other.hypotheses], frequencies)
    note = f"A word's frequency is counted in {counted} of {one.data.name}, before cleaning."
    return Section(title, buckets("times in training", "words", found), note)


def buckets(unit: str, size: str, found: Sequence[Bucket]) -> list[Column]:
    """A line for each bucket."""
    places = digits(figure for bucket in found for figure in bucket.figures)
    return [
        Column(unit, [bucket.name for bucket in found]),
        Column(size, [f"{bucket.size:,}" for bucket in found]),
        *figures([(bucket.figures, places) for bucket in found]),
    ]


def figures(lines: Sequence[tuple[Sequence[float], int]]) -> list[Column]:
    """Figures of both systems, with so many decimals, and how far they are apart."""
    return [
        Column("a", [f"{one:.{places}f}" for (one, _), places in lines]),
        Column("b", [f"{other:.{places}f}" for (_, other), places in lines]),
        Column(
            f"a {MINUS} b",
            [f"{one - other:+.{places}f}".replace("-", MINUS) for (one, other), places in lines],
        ),
    ]


def show(head: Notes, sections: Sequence[Section]) -> None:
    """Print it."""
    console = Terminal()
    for label, text in head:
        console.print(Text.assemble((f"{label}: ", "dim"), text), soft_wrap=True)
    for section in sections:
        console.print(Text(f"\n{section.title}", "bold"))
        if section.columns:
            table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
            for column in section.columns:
                justify: Literal["left", "right"] = "left" if column.of_text else "right"
                table.add_column(Text(column.name), justify=justify, overflow="fold")
            for line in cells(section.columns):
                table.add_row(*map(Text, line))
            console.print(table)
        if section.note:
            console.print(Text(section.note), soft_wrap=True)


def to_markdown(head: Notes, sections: Sequence[Section]) -> str:
    """The same as GitHub shows it."""
    parts = ["# Comparison", "\n".join(f"- **{label}**: {markdown(text)}" for label, text in head)]
    for section in sections:
        parts.append(f"## {markdown(section.title)}")
        if shown := section.columns:
            names, of_text = [column.name for column in shown], [column.of_text for column in shown]
            parts.append(markdown_table(names, of_text, cells(shown)))
        if section.note:
            parts.append(markdown(section.note))
    return "\n\n".join(parts) + "\n"
