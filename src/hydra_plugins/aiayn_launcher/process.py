"""A job's process: started as no rank of anything, shown, and ended with all that it started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PAUSE = 0.1  # seconds between two looks at a job

# A process that finds these takes itself for one rank among several, instead of starting its own ranks.
RANK_VARIABLES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
}


@contextmanager
def received_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of obeying them before the jobs have ended."""
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda received, _: signals.append(received))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_process(
    command: list[str],
    console: Path,
    *,
    environment: Mapping[str, str],
    show: Callable[[bytes], None],
    signals: list[int],
    stop_seconds: float,
) -> int:
    """Run a command until it ends or a signal arrives.

    Args:
        command: Program and arguments.
        console: File to which the output is appended; its folder is made when it is missing.
        environment: Variables besides this process's own.
        show: Called with whole lines of the output, as they come.
        signals: Filled by whoever receives them; the first ends the command, the second kills it.
        stop_seconds: From asking the command to end until it is killed.

    Returns:
        Its exit code; negative for the signal that ended it.
    """
    console.parent.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    inherited = {name: value for name, value in inherited.items() if not name.startswith("TORCHELASTIC_")}
    inherited["PYTHONUNBUFFERED"] = "1"  # else its lines arrive a buffer at a time
    # A file and not a pipe: a rank that outlives the first process would hold a pipe open, and the sweep would wait.
    with console.open("ab") as output, console.open("rb") as shown:
        shown.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            env=inherited | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so Ctrl-C reaches this process alone, and the ranks can be signalled together
        )
        try:
            while process.poll() is None and not signals:
                text = shown.read()
                end = text.rfind(b"\n") + 1
                shown.seek(end - len(text), os.SEEK_CUR)  # half a line is read again
                if end:
                    show(text[:end])
                time.sleep(PAUSE)
        finally:
            end_group(process, signals=signals, stop_seconds=stop_seconds)
        if text := shown.read():
            show(text)
    return process.returncode


def end_group(process: subprocess.Popen[bytes], *, signals: list[int], stop_seconds: float) -> None:
    """End a process and all that it started, also when it has ended itself: its ranks may wait for it for ever."""
    deadline = time.monotonic() + stop_seconds
    with suppress(ProcessLookupError):  # when none is left
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline and len(signals) < 2:
            time.sleep(PAUSE)
            process.poll()  # a process that ended, and whose exit code nobody asked for, counts as one
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
