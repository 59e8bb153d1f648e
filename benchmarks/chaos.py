"""What kill -9 does to a tiny experiment: nothing, once the same commands have been repeated.

    python benchmarks/chaos.py [--kills 40] [--seed 1] [--folder /tmp/...]

An experiment is five commands: prepare, train (with validation, checkpoints, averaging and the evaluation at the end),
evaluate, report, export. It is done once in peace, and then again and again while its processes are killed at random
moments; what was killed is started anew by the same command. Each killed experiment must end as the peaceful one:
bit-identical checkpoints (last, best, averaged) and exports, equal scores, and nothing half-written left behind.

A process is asked where it is (a stack from Python's faulthandler) just before it is killed; so the table says which
phase was hit, and how often.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RUN = Path(__file__).parents[1] / "src" / "run.py"
STAGES = {  # how many kills a command gets in each experiment
    "prepare": 2,
    "train": 7,
    "evaluate": 2,
    "report": 1,
    "export": 1,
}
# Which phase a stack is in: the first of these that it has. A function of ours or of a library's.
PHASES = {
    "write an export": ("write_ctranslate2",),
    "average": ("average",),
    "save": ("save_checkpoint", "_save"),
    "validate": ("on_validation_epoch_end", "validation_step", "_evaluation"),
    "train": ("fit",),
    "prepare": ("prepare",),
    "evaluate": ("evaluate_splits", "evaluate"),
    "report": ("report",),
    "export": ("export_model",),
}
# Starts run.py as `python src/run.py ...` does, and lets SIGUSR1 print the stack.
START = (
    "import faulthandler, runpy, signal, sys; faulthandler.register(signal.SIGUSR1, all_threads=False); "
    f"sys.argv[0] = {str(RUN)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
)
TINY = [
    *("model.layers=1", "model.d_model=16", "model.d_ff=32", "model.heads=2", "trainer=cpu", "inference=greedy"),
    *("data.corpus.pairs=5000", "data.corpus.dev=199", "data.corpus.test=101", "data.vocab_size=300"),
    *("data.tokens_per_batch=512", "training.max_steps=60", "training.warmup_steps=11", "training.checkpoint_steps=4"),
    *(
        "training.validate_steps=12",
        "training.log_steps=5",
        "training.keep_checkpoints=3",
        "training.gradient_clip_norm=1",
    ),
]


class Experiment:
    """A tiny experiment in a folder of its own, by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "tiny"
        self.exported = folder / "exported"
        self.silent: dict[str, float] = {}  # seconds until a stage said its first word
        run = f"checkpoint={self.run}"
        self.arguments = {
            "prepare": ["task=prepare", *TINY],
            "train": [f"run_dir={self.run}", *TINY],
            "evaluate": ["task=evaluate", run, "data.split=dev", f"run_dir={folder / 'evaluation'}"],
            "report": ["task=report", f"folder={folder / 'runs'}"],
            "export": ["task=export", run, f"output={self.exported}"],
        }

    def start(self, stage: str) -> subprocess.Popen[str]:
        """Start a stage; its output is kept in a file beside the folder."""
        log = self.folder.with_name(f"{self.folder.name}.{stage}.log")
        command = [sys.executable, "-c", START, f"outputs={self.folder}", *self.arguments[stage]]
        with log.open("w") as output:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)
        return process

    def said(self, stage: str) -> str:
        """All that the last start of a stage printed."""
        return self.folder.with_name(f"{self.folder.name}.{stage}.log").read_text(errors="replace")

    def has(self, stage: str) -> bool:
        """Whether nothing is left to do, though it was killed: an export that is there is whole, and never replaced."""
        return stage == "export" and self.exported.exists()

    def finish(self, stage: str) -> float:
        """Let a stage run to its end; returns its seconds.

        Raises:
            SystemExit: with what it printed, if it fails.
        """
        began = time.monotonic()
        process = self.start(stage)
        while process.poll() is None and not self.said(stage):
            time.sleep(0.01)
        self.silent[stage] = time.monotonic() - began
        if code := process.wait():
            sys.exit(f"{stage} ended with {code}:\n{self.said(stage)}")
        return time.monotonic() - began

    def killed(self, stage: str, *, after: float) -> str | None:
        """Start a stage and kill it; returns the phase that it was in, None if it had ended before."""
        process = self.start(stage)
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            before = len(self.said(stage))
            process.send_signal(signal.SIGUSR1)
            deadline = time.monotonic() + 2
            while "<module>" not in (stack := self.said(stage)[before:]) and time.monotonic() < deadline:
                time.sleep(0.001)
            process.kill()
            process.wait()
            return phase(stack)
        return None

    def results(self) -> dict[str, Any]:
        """What must not depend on how often the experiment was killed."""
        result = json.loads((self.run / "result.json").read_text())
        evaluation = json.loads((self.folder / "evaluation" / "evaluation.json").read_text())
        found = {key: result[key] for key in ("status", "steps", "target_tokens", "averaged_steps", "scores")}
        found["evaluation"] = evaluation["scores"]
        for file in sorted((self.run / "checkpoints").glob("*.ckpt")):
            found[file.name] = dict(digests(torch.load(file, weights_only=True)))
        found["best"] = torch.load(self.run / "checkpoints" / "best.ckpt", weights_only=True)["global_step"]
        for folder in (self.exported, self.run / "translations"):
            for file in sorted(folder.iterdir()):
                if file.name != "aiayn.json":  # names the folder of the run
                    found[f"{folder.name}/{file.name}"] = sha256(file.read_bytes()).hexdigest()
        found["table"] = bool((self.folder / "runs" / "report" / "table.csv").read_text())
        return found

    def leftovers(self) -> list[str]:
        """Files and folders that a command wrote in and did not finish."""
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.name.endswith(".partial")]


def digests(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A hash of every tensor of a checkpoint's weights and of its optimizer's state."""
    for part in ("state_dict", "optimizer_states"):
        for name, tensor in tensors(part, content.get(part, {})):
            yield name, sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, with where they are."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors(f"{name}.{key}", item)


def phase(stack: str) -> str:
    """Of a stack as faulthandler prints it."""
    functions = set(re.findall(r" in (\w+)$", stack, re.MULTILINE))
    return next((name for name, those in PHASES.items() if not functions.isdisjoint(those)), "start")


def main() -> None:
    """Do it in peace, then with kills, and compare; leave with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="at least so many")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder, removed at the end")
    arguments = parser.parse_args()
    chance, kills, faults = random.Random(arguments.seed), Counter[str](), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        shutil.rmtree(folder / "peace", ignore_errors=True)
        peace = Experiment(folder / "peace")
        peace.folder.mkdir(parents=True)
        seconds = {stage: peace.finish(stage) for stage in STAGES}
        expected = peace.results()
        print("in peace:", ", ".join(f"{stage} {took:.0f} s" for stage, took in seconds.items()), flush=True)
        number = 0
        while kills.total() < arguments.kills:
            number += 1
            shutil.rmtree(folder / f"killed_{number}", ignore_errors=True)
            experiment = Experiment(folder / f"killed_{number}")
            experiment.folder.mkdir(parents=True)
            for stage, times in STAGES.items():
                for _ in range(times):
                    if experiment.has(stage):
                        break
                    # Training speaks once all is imported, which takes longer than the work. A resumed run has less to
                    # do, and may end before.
                    imported = min(peace.silent["train"], 0.8 * seconds[stage])
                    if hit := experiment.killed(stage, after=chance.uniform(imported, seconds[stage])):
                        kills[hit] += 1
                if not experiment.has(stage):
                    experiment.finish(stage)
            found = experiment.results()
            wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
            faults += [f"experiment {number}: {key} differs" for key in wrong]
            faults += [f"experiment {number}: {name} is left" for name in experiment.leftovers()]
            print(f"experiment {number}: {kills.total()} kills so far, {len(faults)} faults", flush=True)
    table = Table("phase", "kills", title="Where they were killed")
    for name, count in kills.most_common():
        table.add_row(name, str(count))
    Console().print(table)
    if faults:
        sys.exit("\n".join(faults))
    print(f"{kills.total()} kills in {number} experiments: each ended as in peace, with nothing left behind")


if __name__ == "__main__":
    main()
