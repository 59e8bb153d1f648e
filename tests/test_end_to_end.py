"""Whole commands, as a user types them, on a model and a corpus that take seconds."""

import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, CommandLine, command, composed, environment
from hydra.utils import instantiate

from aiayn.checkpoints import checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def finished(aiayn: CommandLine, outputs: Path) -> Path:
    """The folder of an undisturbed run."""
    folder = outputs / "finished"
    done = aiayn(f"run_dir={folder}")
    assert "BLEU as in the paper: nrefs:1" in done.stdout
    assert str(folder) in done.stdout
    return folder


def final(folder: Path) -> dict:
    """The whole content of a run's last checkpoint."""
    return checkpoint.read_raw(max((folder / "checkpoints").glob("step_*.ckpt")))


def assert_same_weights(a: Path, b: Path) -> None:
    """Bit for bit: weights, their moving average if there is one, and optimizer."""
    first, second = final(a), final(b)
    assert first["global_step"] == second["global_step"]
    for key in {"state_dict", "current_model_state", "averaging_state"} & (first.keys() | second.keys()):
        for name, value in first[key].items():
            assert torch.equal(value, second[key][name]), (key, name)
    states = [content["optimizer_states"][0]["state"] for content in (first, second)]
    for index, values in states[0].items():
        assert all(torch.equal(value, states[1][index][name]) for name, value in values.items())


def assert_same_content(a: Path, b: Path) -> None:
    """Bit for bit: weights, and what they are of."""
    first, second = checkpoint.read_raw(a), checkpoint.read_raw(b)
    assert all(torch.equal(value, second["state_dict"][name]) for name, value in first["state_dict"].items())
    for key in ("global_step", "averaged_steps", "best"):
        assert first.get(key) == second.get(key)


def test_a_run_leaves_a_result_with_its_provenance(finished: Path, outputs: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["status"] == "done"
    assert result["steps"] == 24
    assert set(result["scores"]) == {"last", "best", "averaged"}
    for scored in result["scores"].values():
        assert {"dev", "test"} <= set(scored)
        for key in composed().metrics:
            assert scored["dev"][key]["signature"]
    assert result["target_tokens"] > 0
    assert result["flops"] > 0
    assert (result["averaged_steps"], result["stopped"]) == ([18, 21, 24], None)
    assert {"config", "config_hash", "command", "git_commit", "versions", "parameters", "made_of"} <= set(result)
    assert (result["threads"], result["precision"]) == (1, "32-true")
    assert (outputs / "prepared" / result["corpus"]).is_dir()
    assert len((finished / "translations" / "averaged.test.txt").read_text().splitlines()) == 13
    metrics = (finished / "metrics" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"dev/bleu", "dev/perplexity", "train/loss", "train/tokens_per_second"} <= set(metrics[0].split(","))


def test_the_last_checkpoints_are_kept_and_averaged(finished: Path) -> None:
    kept = sorted(path.name for path in (finished / "checkpoints").glob("step_*.ckpt"))
    assert kept == ["step_0000018.ckpt", "step_0000021.ckpt", "step_0000024.ckpt"]
    averaged = checkpoint.read_raw(finished / "checkpoints" / "averaged.ckpt")["state_dict"]
    states = [checkpoint.read_raw(finished / "checkpoints" / name)["state_dict"] for name in kept]
    for name, value in averaged.items():
        mean = sum(state[name].double() for state in states) / 3
        assert torch.equal(value, mean.float()), name


def test_a_run_that_is_stopped_is_done_until_its_limit_is_raised(aiayn: CommandLine, tmp_path: Path) -> None:
    # Sums of gradients so small stand still: no validation is better than the first.
    run = ["callbacks=early_stopping", "callbacks.early_stopping.patience=2", "training.validate_steps=2"]
    run += ["training.gradient_clip_norm=1e-30", "training.eps=1", "trainer.precision=bf16-mixed"]
    aiayn(*run, f"run_dir={tmp_path}")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["steps"], result["averaged_steps"]) == ("done", 6, [3, 6])
    assert "did not improve in the last 2 records" in result["stopped"]
    again = aiayn(*run, f"run_dir={tmp_path}", "training.max_steps=30")
    assert "is done: 6 steps (Monitored metric dev/bleu did not improve" in again.stderr
    # As after a kill behind the last step: nothing is trained.
    (tmp_path / "result.json").write_text(json.dumps({**result, "status": "running"}))
    aiayn(*run, f"run_dir={tmp_path}")
    assert json.loads((tmp_path / "result.json").read_text())["scores"] == result["scores"]
    aiayn(*run, f"run_dir={tmp_path}", "callbacks.early_stopping.patience=3")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["steps"], result["averaged_steps"]) == (8, [3, 6, 8])


def test_a_run_that_is_done_does_nothing(aiayn: CommandLine, finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "checkpoints").iterdir()}
    done = aiayn(f"run_dir={finished}")
    assert "is done" in done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (finished / "checkpoints").iterdir()}


def test_another_experiment_is_refused_in_the_folder(aiayn: CommandLine, finished: Path) -> None:
    done = aiayn(f"run_dir={finished}", "model.d_ff=64", code=1)
    assert "model.d_ff=32, not 64" in done.stderr.splitlines()[-1]


def test_a_done_run_that_is_refused_stays_done(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    more = [f"run_dir={tmp_path}/copy", "training.max_steps=48"]
    refused = aiayn(*more, "data.tokens_per_device=300", code=1)
    assert "micro-batches" in refused.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "copy" / "result.json").read_text())["status"] == "done"


def test_a_stale_run_says_so_does_not_go_on_and_begins_anew_when_it_is_forced(
    aiayn: CommandLine, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"  # a run that was moved is still done
    shutil.copytree(finished, folder)
    assert "it is stale" not in aiayn(f"run_dir={folder}").stderr
    result = json.loads((folder / "result.json").read_text())
    result["made_of"]["text"] = "of another text"
    (folder / "result.json").write_text(json.dumps(result))
    assert "it is stale: text changed since; force=true" in aiayn(f"run_dir={folder}").stderr
    (folder / "result.json").write_text(json.dumps({**result, "status": "running"}))
    refused = aiayn(f"run_dir={folder}", code=1)
    assert "text has changed since it began" in refused.stderr.splitlines()[-1]
    done = aiayn(f"run_dir={folder}", "force=true", "training.max_steps=3", "metrics=[bleu]")
    assert "begins anew" in done.stderr
    assert [path.name for path in (folder / "checkpoints").glob("step_*.ckpt")] == ["step_0000003.ckpt"]
    assert json.loads((folder / "result.json").read_text())["steps"] == 3


def test_decoding_is_swept_without_training_and_not_twice(aiayn: CommandLine, finished: Path, outputs: Path) -> None:
    beams = ["sweep=beam", "inference.beam=1,2", "data.split=dev", "inference.max_extra_length=2", "trainer=cpu"]
    checkpoint = f"checkpoint={finished}/checkpoints/averaged.ckpt"
    aiayn(*beams, checkpoint, small=False)
    again = aiayn(*beams, checkpoint, small=False)
    assert again.stdout.count("is done; see") == 2
    report = aiayn(*beams, checkpoint, "task=report", small=False)
    assert "beam=2" in report.stdout
    assert (outputs / "sweeps" / "beam" / "report" / "table.csv").exists()


def test_more_steps_go_on_where_the_run_ended(aiayn: CommandLine, tmp_path: Path) -> None:
    # 25 is no multiple of the 3 steps between checkpoints: the last one is saved for itself.
    aiayn(f"run_dir={tmp_path / 'longer'}", "training.max_steps=25")
    aiayn(f"run_dir={tmp_path / 'longer'}", "training.max_steps=30")
    aiayn(f"run_dir={tmp_path / 'whole'}", "training.max_steps=30")
    assert_same_weights(tmp_path / "longer", tmp_path / "whole")
    for name in ("averaged.ckpt", "best.ckpt"):
        assert_same_content(*(tmp_path / folder / "checkpoints" / name for folder in ("longer", "whole")))


def test_a_run_killed_behind_its_last_step_is_finished(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "checkpoints" / "averaged.ckpt").unlink()
    result = json.loads((folder / "result.json").read_text())
    expected = result.pop("scores")
    (folder / "result.json").write_text(json.dumps({**result, "status": "running"}))
    aiayn(f"run_dir={folder}")
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "done"
    assert result["scores"] == expected


@pytest.mark.parametrize(
    "settings",
    [
        ["data.loader_workers=0"],
        ["data.loader_workers=2", "data.tokens_per_device=230"],
        ["callbacks=ema", "trainer=ddp_cpu", "data.tokens_per_device=230"],
    ],
    ids=["alone", "workers and accumulation", "moving average on two ranks"],
)
def test_a_killed_run_resumes_bit_for_bit(
    aiayn: CommandLine, outputs: Path, tmp_path: Path, settings: list[str]
) -> None:
    aiayn(f"run_dir={tmp_path / 'undisturbed'}", *settings)
    folder = tmp_path / "killed"
    arguments = command(*SMALL, f"outputs={outputs}", f"run_dir={folder}", *settings)
    step = random.randrange(3, 22)
    process = subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not any(int(path.stem[5:]) >= step for path in (folder / "checkpoints").glob("step_*.ckpt")):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert json.loads((folder / "result.json").read_text())["status"] == "running"
    subprocess.run(arguments, env=environment(), check=True, capture_output=True)
    assert_same_weights(folder, tmp_path / "undisturbed")
    for name in ("averaged.ckpt", "best.ckpt"):
        assert_same_content(*(run / "checkpoints" / name for run in (folder, tmp_path / "undisturbed")))
    assert not list((folder / "checkpoints").glob(".*"))  # what was half-written is gone


def test_evaluate_gives_the_scores_of_the_run(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    # Searched as the run does, greedily, and not as the config's defaults say.
    aiayn("task=evaluate", f"checkpoint={finished}", "data.split=test", f"run_dir={tmp_path}", small=False)
    evaluation, result = (
        json.loads(path.read_text()) for path in (tmp_path / "evaluation.json", finished / "result.json")
    )
    assert evaluation["scores"]["averaged"]["test"] == result["scores"]["averaged"]["test"]
    for file in ("averaged.test.txt", "averaged.test.statistics.npz"):
        assert (tmp_path / "translations" / file).read_bytes() == (finished / "translations" / file).read_bytes()


def test_an_ensemble_is_evaluated_like_a_model(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    both = f"checkpoint=[{finished},{finished}/checkpoints/best.ckpt]"
    done = aiayn("task=evaluate", both, "inference=greedy", f"run_dir={tmp_path}", small=False)
    assert "BLEU" in done.stdout
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert evaluation["config"]["checkpoint"] == f"{finished},{finished}/checkpoints/best.ckpt"
    assert evaluation["scores"]["ensemble"]["test"]["sentences"] == 13
    assert (tmp_path / "translations" / "ensemble.test.txt").exists()


def test_the_statistics_give_the_scores(finished: Path) -> None:
    scored = json.loads((finished / "result.json").read_text())["scores"]["last"]["dev"]
    counts = dict(np.load(finished / "translations" / "last.dev.statistics.npz"))
    assert {len(of_sentences) for of_sentences in counts.values()} == {17}
    assert len(set(counts.pop("references").tolist())) > 1
    metrics = instantiate(composed().metrics)
    assert counts.keys() == metrics.keys()
    assert {key: float(metrics[key].value(counts[key].sum(0))) for key in metrics} == {
        key: scored[key]["value"] for key in metrics
    }
    with (finished / "metrics" / "version_0" / "metrics.csv").open() as file:
        validated = [float(line["dev/perplexity"]) for line in csv.DictReader(file) if line["dev/perplexity"]]
    assert validated[-1] == pytest.approx(
        scored["perplexity"]["value"], rel=1e-5
    )  # the last step is one with a validation


def test_every_validation_keeps_the_likelihoods_of_what_is_held_out(finished: Path) -> None:
    files = sorted((finished / "likelihoods").iterdir())
    assert [file.name for file in files] == ["step_0000012.npz", "step_0000024.npz"]
    for split in ("dev", "test"):
        counts = np.load(finished / "translations" / f"last.{split}.statistics.npz")["perplexity"]  # of the last step
        np.testing.assert_allclose(np.load(files[-1])[split], counts * [-1, 1], rtol=1e-5)
    assert np.load(files[0])["dev"][:, 0].sum() < np.load(files[1])["dev"][:, 0].sum()


def test_tasks_that_are_no_runs_leave_no_folder(aiayn: CommandLine, finished: Path, outputs: Path) -> None:
    before = sorted(outputs.iterdir()), sorted((outputs / "runs").glob("*/*"))
    aiayn("task=translate", f"checkpoint={finished}/checkpoints/averaged.ckpt", stdin=b"one", small=False)
    assert before == (sorted(outputs.iterdir()), sorted((outputs / "runs").glob("*/*")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_it_goes_on(outputs: Path, tmp_path: Path, number: signal.Signals) -> None:
    run = [*SMALL, f"outputs={outputs}", f"run_dir={tmp_path}", "training.max_steps=100000"]
    process = subprocess.Popen(
        command(*run),
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # As in a terminal: what runs in the background, under nohup for one, hands ignored signals down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("checkpoints/step_*.ckpt")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert f"run_dir='{tmp_path}'" in stderr.splitlines()[-1]


def test_a_command_that_is_ended_leaves_nothing_half_written(finished: Path, tmp_path: Path) -> None:
    run = command("task=translate", f"checkpoint={finished}", f"output={tmp_path / 'translations'}")
    with subprocess.Popen(run, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.iterdir()):  # it writes, and waits for its input
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_says_why_in_its_folder(aiayn: CommandLine, tmp_path: Path) -> None:
    done = aiayn(f"run_dir={tmp_path}", "data.vocab_size=20", code=1)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "failed"
    assert done.stderr.splitlines()[-1] == f"error: {result['error']}"


def test_evaluate_reads_other_data_when_they_are_named(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    files = f"{{source: {tmp_path}/a.en, target: {tmp_path}/a.de}}"
    evaluate = ["task=evaluate", f"checkpoint={finished}/checkpoints/averaged.ckpt", f"run_dir={tmp_path}"]
    aiayn(*evaluate, "data=text", f"data.train={files}", f"data.dev={files}", f"data.test={files}", small=False)
    scored = json.loads((tmp_path / "evaluation.json").read_text())["scores"]["averaged"]["test"]
    assert scored["sentences"] == 2
    assert "moses-de" in scored["bleu_tokenized_lowercase"]["signature"]  # the checkpoint knows what text=... does not
    stray = aiayn(*evaluate, f"data.test={files}", small=False, code=1)
    assert "data=" in stray.stderr.splitlines()[-1]


def test_translate_gives_a_line_for_each_line(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    translate = ["task=translate", f"checkpoint={finished}/checkpoints/averaged.ckpt", "inference=beam"]
    text = "three\n\n   \nthe fourth of May\u0085\u2028again\r\n\U0001f600\nfive".encode()
    done = aiayn(*translate, stdin=text, small=False)
    lines = done.stdout.split("\n")
    assert len(lines) == 7
    assert lines[1] == lines[2] == lines[-1] == ""
    (tmp_path / "in.txt").write_bytes(text)
    aiayn(*translate, f"input={tmp_path}/in.txt", f"output={tmp_path}/out.txt", small=False)
    assert (tmp_path / "out.txt").read_text() == done.stdout
    assert aiayn(*translate, stdin=b"", small=False).stdout == ""


def test_average_writes_a_checkpoint_that_evaluate_reads(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    files = sorted(str(path) for path in (finished / "checkpoints").glob("step_*.ckpt"))
    aiayn("task=average", f"checkpoints=[{','.join(files)}]", f"output={tmp_path}/mean.ckpt", small=False)
    ours, theirs = (
        checkpoint.read_raw(path)["state_dict"]
        for path in (tmp_path / "mean.ckpt", finished / "checkpoints" / "averaged.ckpt")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    twice = aiayn(
        "task=average", f"checkpoints=[{files[0]},{files[0]}]", f"output={tmp_path}/x.ckpt", small=False, code=1
    )
    assert "twice" in twice.stderr
    assert not (tmp_path / "x.ckpt").exists()


def test_topology_does_not_change_the_experiment(aiayn: CommandLine, tmp_path: Path) -> None:
    common = ["model.dropout=0", "training.max_steps=6", "training.validate_steps=6", "data.tokens_per_batch=700"]
    # `tokens_per_device` makes 4 micro-batches on one device and 2 on each of two, see `accumulation_steps`.
    topologies = {
        "1x4": ["trainer=cpu", "data.tokens_per_device=230"],
        "2x2": ["trainer=ddp_cpu", "data.tokens_per_device=230"],
        "4x1": ["trainer=ddp_cpu", "trainer.devices=4"],
    }
    weights, scores = {}, {}
    for name, arguments in topologies.items():
        done = aiayn(*common, *arguments, f"run_dir={tmp_path / name}")
        assert f"{name.replace('x', ' x ')} micro-batches" in done.stderr
        weights[name] = final(tmp_path / name)["state_dict"]
        scores[name] = json.loads((tmp_path / name / "result.json").read_text())
    for name in ("2x2", "4x1"):
        for key, value in weights["1x4"].items():
            ours = weights[name][key]
            if key.endswith("memory.bias"):
                # The softmax does not see the keys' bias: its gradient is rounding, which Adam brings to full size.
                ours, value = (bias.view(2, 2, -1)[:, 1] for bias in (ours, value))  # of values, in two heads
            torch.testing.assert_close(ours, value, rtol=2e-4, atol=2e-6, msg=f"{name} {key} differs")
        assert scores[name]["target_tokens"] == scores["1x4"]["target_tokens"]


def test_a_sweep_runs_a_job_for_each_value_and_finishes_what_is_missing(aiayn: CommandLine, outputs: Path) -> None:
    sweep = ["-m", "model.heads=1,2,4", "training.max_steps=3", "training.validate_steps=3", "name=heads"]

    def results() -> dict[int, Path]:
        files = (outputs / "sweeps" / "heads").glob("*/result.json")
        return {json.loads(file.read_text())["config"]["model"]["heads"]: file for file in files}

    aiayn(*sweep)
    assert sorted(results()) == [1, 2, 4]
    assert [json.loads(results()[heads].read_text())["config"]["model"]["d_k"] for heads in (1, 2, 4)] == [16, 8, 4]
    shutil.rmtree(results()[2].parent)
    kept = results()[1].stat().st_mtime_ns
    assert "done before" in aiayn(*sweep).stdout
    assert sorted(results()) == [1, 2, 4]
    assert results()[1].stat().st_mtime_ns == kept


def test_wandb_is_offline_without_a_login_and_says_so(
    aiayn: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no ~/.netrc
    folder = tmp_path / "sweep" / "row"
    done = aiayn("logger=wandb", f"run_dir={folder}", "training.max_steps=3", "training.validate_steps=3")
    assert "W&B has no login" in done.stderr
    (run,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    content = run.read_bytes()
    for word in (b"dev/bleu", b"dev/translations", b"label_smoothing", b"sweep", b"row"):
        assert word in content
    assert (folder / "wandb_id.txt").read_text().encode() in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data.tokens_per_device=7"], ["data.tokens_per_device=7", "longest"]),
        (["trainer.devices=99", "trainer.accelerator=gpu"], ["trainer"]),
        (["trainer.devices=9999"], ["trainer.devices=9999", "cores"]),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    aiayn: CommandLine, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = aiayn(*arguments, f"run_dir={tmp_path / 'run'}", code=1)
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert all(word in line for word in words), line


def test_bad_text_is_refused_in_one_line(aiayn: CommandLine, tmp_path: Path) -> None:
    files = {"good": b"a b\nc d\ne f\n", "short": b"a b\nc d\n", "latin": b"a\nb\n\xe4\xf6\n", "empty": b""}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)

    def line(source: str, target: str) -> str:
        pair = f"{{source: {tmp_path / source}, target: {tmp_path / target}}}"
        done = aiayn(
            "data=text", f"data.train={pair}", f"data.dev={pair}", f"run_dir={tmp_path}/run", small=False, code=1
        )
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    assert {"3", "2"} <= set(line("good", "short").replace(",", " ").replace(".", " ").split())
    assert "latin" in line("latin", "good")
    assert "3" in line("latin", "good")
    assert "empty" in line("empty", "empty")


def test_a_damaged_or_foreign_checkpoint_is_refused(aiayn: CommandLine, finished: Path, tmp_path: Path) -> None:
    whole = (finished / "checkpoints" / "averaged.ckpt").read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    torch.save({"model": torch.zeros(3)}, tmp_path / "foreign.ckpt")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    for name in ("cut", "foreign", "text"):
        done = aiayn("task=translate", f"checkpoint={tmp_path / name}.ckpt", small=False, stdin=b"one\n", code=1)
        assert f"{name}.ckpt" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_a_full_disk_ends_the_run_and_loses_nothing(outputs: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    arguments = command(*SMALL, f"outputs={outputs}", f"run_dir={folder}")
    # A limit on the size of a file, a little below that of a checkpoint with its optimizer, stands for the full disk.
    size = min(path.stat().st_size for path in (finished / "checkpoints").glob("step_*.ckpt")) - 1000
    done = subprocess.run(
        arguments,
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert done.returncode == 1
    assert "could not write the checkpoint" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not list((folder / "checkpoints").iterdir())  # nothing half-written
    with Path("/dev/full").open("wb", buffering=0) as full:  # what is done stays done, printed or not
        done = subprocess.run(arguments, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert "could not be printed: [Errno 28] No space left" in done.stderr.splitlines()[-1]
    assert json.loads((folder / "result.json").read_text())["status"] == "done"
    assert_same_weights(folder, finished)
