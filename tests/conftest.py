"""Command lines and small runs that several tests share."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from aiayn import resolvers, schema

if TYPE_CHECKING:
    from torch import Tensor

    from aiayn.data.batching import Batch
    from aiayn.data.corpus import Corpus
    from aiayn.model.model import Model
    from aiayn.model.transformer import TranslationTransformer
    from aiayn.model.view import View

ROOT = Path(__file__).parents[1]
SMALL = [  # seconds on one core
    "model.layers=1",
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "data.corpus.pairs=700",
    "data.corpus.dev=17",
    "data.corpus.test=13",
    "data.vocab_size=300",
    "data.tokens_per_batch=512",
    "training.max_steps=24",
    "training.warmup_steps=11",
    "training.checkpoint_steps=3",
    "training.validate_steps=12",
    "training.log_steps=5",
    "training.keep_checkpoints=3",
    "trainer=cpu",
    "inference=greedy",
    "inference.max_extra_length=2",
]

schema.register()
resolvers.register()
CommandLine = Callable[..., subprocess.CompletedProcess[str]]
Told = Callable[..., DictConfig]


def environment() -> dict[str, str]:
    """One thread a process, so that tests beside each other do not wait for each other, and no word from W&B."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}


def command(*arguments: str) -> list[str]:
    """The command line of a user."""
    flags = [argument for argument in arguments if argument.startswith("-")]  # argparse wants them first
    return [sys.executable, str(ROOT / "src" / "run.py"), *flags, *(a for a in arguments if a not in flags)]


# Every position and attention that conf has, as a command line chooses it.
PARTS = [
    f"model/{group}={path.stem}"
    for group in ("position", "attention", "feed_forward", "norm")
    for path in sorted((ROOT / "conf" / "model" / group).glob("*.yaml"))
]


def composed(*overrides: str, folder: Path | None = None) -> DictConfig:
    """The config of a command line, resolved; `folder` has files beside those of conf."""
    search = [f"hydra.searchpath=[file://{folder}]"] if folder else []
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=[*overrides, *search])
    OmegaConf.resolve(cfg)
    return cfg


def prepared(cfg: DictConfig) -> "Corpus":
    """The corpus of a composed config, found or built."""
    from aiayn.problems.translation import Translation

    problem = Translation(cfg)
    problem.prepare()
    return problem.prepared


@pytest.fixture
def told() -> Iterator[Told]:
    """The config of a command line, resolved, with Hydra in this process as if it had been started by that line."""

    def told(*overrides: str) -> DictConfig:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("config", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        OmegaConf.resolve(cfg)
        return cfg

    yield told
    HydraConfig.instance().cfg = None


class Batches:
    """A loader whose position is part of a checkpoint, as that of `StepLoader` is: the same batches in each epoch."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.all = batches
        self.sampler = self  # Lightning tells it the epoch
        self.epoch = self.skip = self.batches = 0

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Any]:
        self.batches = self.skip
        for batch in self.all[self.skip :]:
            self.batches += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.batches = state_dict["epoch"], state_dict["batches"]
        self.skip = self.batches


def write_checkpoint(path: Path, *overrides: str, words: Sequence[str], seed: int = 1, step: int = 1) -> Path:
    """Write a checkpoint of the composed config with random weights, far from uniform.

    In a folder `checkpoints` it is one of a run, whose result.json is written, too.

    Args:
        path: Of the file.
        overrides: Of the command line of its run.
        words: The tokenizer's; most become pieces of their own. With `data.shared_vocabulary=false` the target's is of
            capitals.
        seed: Of the weights.
        step: Optimizer steps that are said to be behind it.
    """
    import torch

    from aiayn.checkpoints import checkpoint
    from aiayn.checkpoints.building import build
    from aiayn.data.tokenizer import Tokenizer, Vocabularies

    config = OmegaConf.to_container(composed(*overrides))
    text = [f"{word} {word}s" for word in words]
    vocabularies = Vocabularies.joint(Tokenizer.train(text, vocab_size=len(set("".join(text))) + len(words) + 9))
    if not config["data"]["shared_vocabulary"]:  # type: ignore[index]
        target = Tokenizer.train([line.upper() for line in text], vocab_size=vocabularies.source.vocab_size - 1)
        vocabularies = Vocabularies(vocabularies.source, target)
    torch.manual_seed(seed)
    model = build(config["model"], **vocabularies.sizes)  # type: ignore[index]
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    content = {**checkpoint.contents(config, vocabularies), "state_dict": state, "global_step": step}  # type: ignore[arg-type]
    checkpoint.write(path, content)
    if path.parent.name == "checkpoints":
        (path.parents[1] / "result.json").write_text(json.dumps({"config": config}))
    return path


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of outputs for all small runs, which so share their prepared corpus."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="session")
def aiayn(outputs: Path) -> CommandLine:
    """Run `python src/run.py` with a small model and corpus; fails the test unless `code` is its exit code."""

    def run(
        *arguments: str, code: int = 0, stdin: bytes | None = None, small: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*(SMALL if small else []), f"outputs={outputs}", *arguments),
            input=stdin,
            capture_output=True,
            env=environment(),
            cwd=outputs,  # any folder will do
            timeout=300,
        )
        text = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert text.returncode == code, text.stderr
        return text

    return run


def obey(*arguments: str) -> int:
    """Run `python src/run.py` in this process, which has torch already, and give the exit code of that command."""
    logger = logging.getLogger()
    handlers, level, raises = logger.handlers[:], logger.level, logging.raiseExceptions
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AIAYN_TRACEBACK", "HYDRA_FULL_ERROR"):  # as they were, afterwards
            patch.setenv(name, "0")
        import run

        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        patch.setattr(sys, "path", sys.path[:])
        patch.setattr(sys, "argv", [str(ROOT / "src" / "run.py"), *arguments])
        try:
            run.run()
            return 0
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logging.raiseExceptions = raises


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run `python src/run.py` in this process; the result is that of a process."""

    def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = obey(*arguments)
        return subprocess.CompletedProcess(list(arguments), code, *capsys.readouterr())

    return command_line


def pairs(source: "Tensor", target: "Tensor") -> "Batch":
    """What a model reads of sources and of targets from BOS on, padded with 0; `target` is what it reads, all of it."""
    import numpy as np
    from torch.nn.functional import pad

    from aiayn.data.batching import Batch

    return Batch.of(source.numpy(), pad(target, (0, 1)).numpy(), np.arange(len(source)))


def view(queries: int, keys: int | None = None, **seen: Any) -> "View":
    """What so many queries see of so many keys, both from position 0 on; `mask` and `causal` as `View` has them."""
    import torch

    from aiayn.model.view import View

    return View(torch.arange(queries), torch.arange(queries if keys is None else keys), **seen)


def logits(model: "Model", source: "Tensor", target: "Tensor") -> "Tensor":
    """Of every next token, `(batch, target, vocab)`."""
    return model.project(model(pairs(source, target)).features)


@pytest.fixture
def build() -> Callable[..., "TranslationTransformer"]:
    """Build a small Model in evaluation mode, of distinct sizes, so that a swapped axis shows."""
    # Imported here, so that tests of the command line need not wait for torch.
    import torch

    from aiayn.model.attention.multi_head import MultiHeadAttention
    from aiayn.model.feed_forward.relu import FeedForward
    from aiayn.model.norm.post import PostNorm
    from aiayn.model.position.sinusoidal import SinusoidalPosition
    from aiayn.model.transformer import TranslationTransformer

    def build(
        *,
        seed: int = 1,
        vocab_size: int = 29,
        layers: int = 2,
        d_model: int = 22,
        d_ff: int = 31,
        heads: int = 2,
        d_k: int = 5,
        d_v: int = 7,
        dropout: float = 0.0,
        position: Callable[..., torch.nn.Module] = SinusoidalPosition,
        encoder_layers: int | None = None,
        source_vocab_size: int | None = None,
        **attention: Any,
    ) -> TranslationTransformer:
        torch.manual_seed(seed)
        model = TranslationTransformer(
            vocab_size,
            source_vocab_size=source_vocab_size,
            encoder_layers=encoder_layers or layers,
            decoder_layers=layers,
            d_model=d_model,
            dropout=dropout,
            attention=partial(MultiHeadAttention, d_model, heads, d_k=d_k, d_v=d_v, **attention),
            feed_forward=partial(FeedForward, d_model, d_ff),
            norm=partial(PostNorm, d_model, dropout),
            position=partial(position, d_model),
        )
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and gains, which begin at 0 or 1
                torch.nn.init.normal_(parameter, mean=0.5)
        return model.eval()

    return build


@pytest.fixture
def chromium() -> str:
    """The browser's program."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs chromium")
