"""Command lines and small runs that several tests share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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

CommandLine = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    """One thread a process, so that tests beside each other do not wait for each other, and no one's W&B account."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def command(*arguments: str) -> list[str]:
    """The command line of a user."""
    return [sys.executable, str(ROOT / "src" / "run.py"), *arguments]


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
