import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PROGRAM = """
import torch
from conftest import SMALL, composed
from omegaconf import OmegaConf

from aiayn.training.trainer import build_trainer

torch.set_num_threads(2)
build_trainer(OmegaConf.to_container(composed(*SMALL)))
print((torch.full((2**20,), 1e-38) * torch.full((2**20,), 0.1)).count_nonzero().item())
"""

MEMORY = """
from pathlib import Path

import torch
from conftest import SMALL, composed
from omegaconf import OmegaConf
from torch.nn.functional import linear

from aiayn.training.trainer import build_trainer

torch.set_num_threads(1)
build_trainer(OmegaConf.to_container(composed(*SMALL)))
weights = [torch.randn(size, requires_grad=True) for size in ((192, 64), (64, 64), (256, 64), (64, 256))]
generator = torch.Generator().manual_seed(1)
for step in range(1, 161):
    x = torch.randn(torch.randint(100, 2000, (), generator=generator), 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = [linear(x, weight) for weight in weights[:-1]]
        (linear(hidden[-1], weights[-1]).sum() + sum(map(torch.sum, hidden))).backward()
    if step in (40, 160):
        print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmRSS")))
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs Linux, which says how much memory is resident"
)
def test_training_in_bfloat16_does_not_keep_memory_for_every_shape_that_it_saw(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
    )
    early, late = map(int, done.stdout.split())
    assert late < 1.3 * early, done.stderr


@pytest.mark.slow
def test_numbers_too_small_to_be_multiplied_fast_are_zero_in_every_thread(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
    )
    assert done.stdout == "0\n", done.stderr
