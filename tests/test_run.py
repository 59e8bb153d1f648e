"""Whatever goes wrong in a command is one line on standard error, and leaves with 1."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from conftest import CommandLine, command, composed, environment

import run
from aiayn import schema
from aiayn.commands import evaluate, prepare


def raising(error: BaseException) -> Callable[[object], NoReturn]:
    """A task that ends in an error."""

    def task(cfg: object) -> NoReturn:
        raise error

    return task


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "not enough memory: the machine has no more"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "not enough memory: DefaultCPUAllocator"),
        (RecursionError("too deep"), "unexpected RecursionError: too deep"),
        (AttributeError("'NoneType' object has no attribute 'x'"), "unexpected AttributeError: 'NoneType' object has"),
        (KeyError("corpus"), "unexpected KeyError: 'corpus'"),
        (AssertionError(), "unexpected AssertionError: "),
    ],
)
def test_what_nobody_foresaw_is_a_line_and_a_traceback_in_the_log(
    error: BaseException, line: str, in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evaluate, "evaluate", raising(error))
    done = in_process("task=evaluate", f"checkpoint={tmp_path}", f"run_dir={tmp_path}/run")
    assert done.returncode == 1
    log = tmp_path / "run" / "run.log"
    [said] = done.stderr.splitlines()
    assert said.startswith(f"error: {line}")
    assert said.endswith(f"; the traceback is in {log}")
    assert "Traceback" in log.read_text()
    assert "raise error" in log.read_text()


def test_a_task_without_a_folder_says_how_to_see_the_traceback(
    in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "prepare", raising(IndexError("list index out of range")))
    done = in_process("task=prepare")
    expected = "error: unexpected IndexError: list index out of range; AIAYN_TRACEBACK=1 shows where it comes from\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def ones_own(tmp_path: Path) -> Path:
    """A folder `conf` with a task, and beside it the module that it names."""
    (tmp_path / "conf" / "task").mkdir(parents=True)
    task = "# @package _global_\ndefaults: [/no_run, _self_]\ntask: beside_conf.say\n"
    (tmp_path / "conf" / "task" / "say.yaml").write_text(task)
    code = "import os\n\ndef say(cfg):\n    print(os.environ['PYTHONPATH'])\n"
    (tmp_path / "beside_conf.py").write_text(code)
    return tmp_path / "conf"


@pytest.mark.parametrize("form", [["--config-dir=PLACE"], ["--config-dir", "PLACE"], ["-cd", "PLACE/../conf"]])
def test_what_lies_beside_config_dir_is_imported_here_and_by_processes_that_this_one_starts(
    form: list[str], in_process: CommandLine, ones_own: Path
) -> None:
    done = in_process(*(word.replace("PLACE", str(ones_own)) for word in form), "task=say")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().split(":")[0] == str(ones_own.parent)


def test_a_file_of_ones_own_that_would_never_be_read_is_refused(in_process: CommandLine, ones_own: Path) -> None:
    (ones_own / "model").mkdir()
    (ones_own / "model" / "base.yaml").touch()
    done = in_process("--config-dir", str(ones_own), "task=say")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {ones_own}/model/base.yaml would never be read: aiayn has one of that name; give yours another.\n"
    )


@pytest.mark.slow
def test_a_run_that_is_refused_leaves_no_folder(in_process: CommandLine, tmp_path: Path) -> None:
    assert in_process("inference.beam=0", f"outputs={tmp_path}/outputs").returncode == 1
    assert in_process("inference.beam=0", f"run_dir={tmp_path}/run").returncode == 1
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    in_process("inference.beam=0", f"run_dir={tmp_path}/run")
    assert (tmp_path / "run" / "mine.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("task=translate", "checkpoint is not set; give checkpoint=..."),
        ("task=translate checkpoint=nowhere", "checkpoint=HERE/nowhere does not exist; "),
        ("task=translate checkpoint=[.,nowhere]", "checkpoint=HERE/nowhere does not exist; "),
        ("task=rescore checkpoint=. source=nowhere target=.", "source=HERE/nowhere does not exist; "),
        ("task=attention checkpoint=.", "sentence is not set; give sentence=..."),
        ("task=compare a=. b=nowhere", "b=HERE/nowhere does not exist; "),
        ("data=text", "data.train.source is not set; give a file of text, one sentence a line."),
        ("data=text data.train={source:.,target:.}", "data.dev.source is not set; "),
        ("task=prepare data=text data.train={source:[.,nowhere],target:.}", "data.train.source=HERE/nowhere does not"),
        ("data=text data.train={source:.,target:.} data.dev={source:.,target:x.de}", "data.dev.target=HERE/x.de does "),
        ("training.initialize=nowhere", "training.initialize=HERE/nowhere does not exist; "),
        ("data.tokenizer=nowhere", "data.tokenizer=HERE/nowhere does not exist; "),
    ],
)
def test_what_is_not_there_is_refused_before_the_task_is_imported(
    arguments: str, says: str, in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIAYN_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setattr(run, "import_module", raising(AssertionError("imported")))
    done = in_process(*arguments.split())
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {says.replace('HERE', str(tmp_path))}")
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_begun_may_outlive_its_text(tmp_path: Path) -> None:
    cfg = composed("data=text", "training=tiny", f"data.train={{source: {tmp_path}/a.en, target: {tmp_path}/a.de}}")
    with pytest.raises(ValueError, match=r"data\.train\.source=.*a\.en does not exist"):
        schema.check_run(cfg, tmp_path)
    (tmp_path / "result.json").touch()
    schema.check_run(cfg, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["outputs="], "outputs"),
        (["run_dir="], "run_dir"),
        (["task=evaluate", "checkpoint=x", "outputs="], "outputs"),
        (["-m", "seed=1,2", "outputs="], "outputs"),
        (["task=prepare", "outputs="], "outputs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_an_empty_place_is_refused_before_a_folder_is_made(
    arguments: list[str], key: str, in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process(*arguments)
    assert done.returncode == 1
    assert done.stderr.endswith(f"{key} is empty; give {key}=..., or leave it as it is in conf/.\n")
    assert not [*tmp_path.iterdir(), *(Path(path) for path in ("/runs", "/sweeps", "/evaluate") if Path(path).exists())]


def test_a_task_that_is_no_run_makes_no_folder_while_it_is_composed(
    in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIAYN_OUTPUTS", str(tmp_path))
    assert in_process("task=plan").returncode == 0
    assert not list(tmp_path.iterdir())


def test_escape_sequences_of_a_name_do_not_reach_the_terminal(in_process: CommandLine) -> None:
    assert "\\x1b[31mred" in in_process("model='\x1b[31mred'").stderr


def test_a_traceback_is_there_for_who_wants_it() -> None:
    done = subprocess.run(
        command("model.head=3"),
        capture_output=True,
        text=True,
        env={
            **{name: environment()[name] for name in environment() if name != "AIAYN_TRACEBACK"},
            "HYDRA_FULL_ERROR": "1",
        },
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.slow
def test_closed_standard_streams_are_no_error(tmp_path: Path) -> None:
    script = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(["bash", "-c", script, "bash", *command("task=plan")], cwd=tmp_path, env=environment())
    assert done.returncode == 0


def test_what_the_encoding_of_the_output_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="latin-1", write_through=True))
    run.open_streams()
    print("f\u00fcnf \u2192 5")
    assert output.getvalue() == b"f\xfcnf \\u2192 5\n"


@pytest.mark.slow
@pytest.mark.parametrize("question", [["--help"], ["--cfg", "job"]])
def test_who_reads_only_the_head_of_the_help_sees_no_error(question: list[str]) -> None:
    with subprocess.Popen(
        command(*question), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.slow
def test_a_full_disk_under_standard_output_is_a_line() -> None:
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" > /dev/full', "bash", *command("task=plan")],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device: standard output\n")
