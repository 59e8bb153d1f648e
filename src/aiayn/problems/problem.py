"""What the commands ask of a problem, and what an evaluation leaves."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import get_class
from lightning.pytorch import LightningDataModule
from omegaconf import DictConfig

from aiayn.data.replica import Replica
from aiayn.data.step_size import StepSize
from aiayn.data.tokenizer import Vocabularies
from aiayn.evaluation.metric import Metric, Score
from aiayn.files import replacing, write_text
from aiayn.model.model import Model
from aiayn.terminal import Terminal
from aiayn.training.module import TrainingModule


@dataclass(frozen=True)
class Evaluation:
    """Outputs for a split and what they score.

    Attributes:
        hypotheses: What was decoded; none where no metric looks at text.
        references: What it is scored against.
        scores: By the metrics' keys.
        counts: Of each sentence, which the scores are the values of; likewise.
    """

    hypotheses: list[str]
    references: list[str]
    scores: dict[str, Score]
    counts: dict[str, np.ndarray]

    def as_dict(self) -> dict[str, Any]:
        """Plain containers for result.json."""
        scored: dict[str, Any] = {key: asdict(score) for key, score in self.scores.items()}
        return {**scored, "sentences": len(self.references)}

    def write(self, stem: Path) -> None:
        """Keep the outputs as `stem.txt`, and what the significance of differences is told from beside them.

        `stem.statistics.npz` has the counts by the metrics' keys, and a checksum of each reference as `references`,
        which tells whether two systems were measured on the same ones.
        """
        if self.hypotheses:
            write_text(stem.with_name(f"{stem.name}.txt"), "".join(f"{line}\n" for line in self.hypotheses))
        checksums = np.array([zlib.crc32(line.encode()) for line in self.references], dtype=np.uint32)
        with replacing(stem.with_name(f"{stem.name}.statistics.npz")) as place, place.open("wb") as file:
            np.savez_compressed(file, references=checksums, **self.counts)  # type: ignore[arg-type]


def problem_of(cfg: DictConfig) -> "Problem":
    """The problem that a config names.

    Raises:
        ValueError: if its class is none.
    """
    kind = get_class(target) if (target := cfg.problem.get("_target_")) else None
    if kind is None or not issubclass(kind, Problem):
        raise ValueError(f"problem._target_={target} is no class like aiayn.problems.problem.Problem; name one.")
    return kind(cfg)


class Problem(ABC):
    """What is learned by a run.

    Args:
        cfg: The run's config. To evaluate a finished run, its `data` and `inference` are those that are wanted now.

    Attributes:
        module: The LightningModule that learns from the batches.
    """

    module: type[TrainingModule] = TrainingModule

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg

    @abstractmethod
    def asked_sizes(self) -> dict[str, int]:
        """What a model is given besides its config, `vocab_size` for one, as the config asks for it.

        Raises:
            ValueError: if no data can follow from the settings.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Find the data or make them; what follows here is asked afterwards."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Of the prepared data; its name tells them from others."""

    @property
    @abstractmethod
    def vocabularies(self) -> Vocabularies:
        """What a checkpoint keeps to read text with; their `sizes` are what a model is given."""

    @abstractmethod
    def splits(self) -> list[str]:
        """Names of the parts, `train` and `dev` among them."""

    def held_out(self) -> list[str]:
        """The parts that are not trained on, `dev` first: the order of the loaders that validate."""
        return sorted((split for split in self.splits() if split != "train"), key=lambda split: split != "dev")

    @abstractmethod
    def size(self, split: str) -> int:
        """How many examples there are."""

    @abstractmethod
    def longest(self, split: str) -> int:
        """The length of the longest sequence, in tokens."""

    @abstractmethod
    def step_size(self, tokens_per_batch: int, *, fits_corpus: bool) -> StepSize:
        """What an optimizer step holds that may cost so much; less, if it is to fit a small corpus."""

    @abstractmethod
    def batches(self, step: StepSize, *, accumulation: int, replica: Replica) -> LightningDataModule:
        """A replica's share of the steps of training, each in so many micro-batches, and of what is `held_out`."""

    @abstractmethod
    def flops(self, model: Model, target_tokens: int) -> float:
        """Floating-point operations of training on so many target tokens; the model is on the meta device.

        Raises:
            ValueError: if the model cannot be counted.
        """

    @abstractmethod
    def evaluate(
        self, model: Model, vocabularies: Vocabularies, split: str, *, metrics: Mapping[str, Metric], name: str
    ) -> Evaluation:
        """What a model is worth on a split; of data that are not prepared, too.

        Args:
            model: In evaluation mode.
            vocabularies: Those it was trained with.
            split: Of the data.
            metrics: By the keys that their scores get; what cannot be counted is left out with a warning.
            name: What is evaluated, for the progress bar.
        """

    @abstractmethod
    def show(self, console: Terminal, split: str, hypotheses: Sequence[str]) -> None:
        """Print the first examples of a split beside what was decoded."""
