"""What of the machine each job of a sweep gets when several run at a time: its own GPUs, or its part of the cores.

torch is not asked what there is, so that the sweeping process need not load it.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any


def visible_gpus() -> list[str]:
    """The GPUs that a process started from here sees, by the names that `CUDA_VISIBLE_DEVICES` takes."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, names.split(","))))
    with suppress(OSError, subprocess.SubprocessError):  # no driver, no GPU
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
        return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]
    return []


def share(trainer: Mapping[str, Any], *, slot: int, parallel: int, gpus: Sequence[str]) -> dict[str, str]:
    """Environment variables that keep a job to its share.

    Args:
        trainer: The job's settings: `accelerator` and `devices`.
        slot: Which of the jobs that run at the same time it is, from 0.
        parallel: How many run at the same time.
        gpus: All that there are.

    Returns:
        Nothing where the job needs no limit, or the user has set one.

    Raises:
        ValueError: if there are not enough GPUs for so many jobs.
    """
    accelerator, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    count = _count(devices)
    if gpus and accelerator in ("auto", "gpu", "cuda"):
        if count is None and parallel == 1:
            return {}  # it names its devices itself
        if count is None:
            raise ValueError(
                f"trainer.devices must be a number or auto with launcher.parallel={parallel}, got {devices}."
            )
        if parallel * max(count, 1) > len(gpus):
            raise ValueError(
                f"launcher.parallel={parallel} x trainer.devices={devices} is more than there are, {len(gpus)} GPUs; "
                f"lower one of them."
            )
        width = len(gpus) // parallel
        mine = gpus[slot * width :][: count or width]
        return {"CUDA_VISIBLE_DEVICES": ",".join(mine)} if parallel > 1 else {}
    processes = parallel * max(count or 1, 1)
    if accelerator in ("auto", "cpu") and processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        # torch's threads spin while they wait: as many in each process as there are cores, and all crawl.
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}
    return {}


def _count(devices: Any) -> int | None:
    """How many devices are asked for; 0: all there are; None: some by name."""
    if devices in ("auto", -1, "-1"):
        return 0
    return int(devices) if str(devices).isdecimal() else None
