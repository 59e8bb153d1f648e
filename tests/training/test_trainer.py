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
