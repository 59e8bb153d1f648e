"""A stranger's ideas, each one file and one YAML, all the way: training, search, resuming, plan, sweep, report, claims.

`mypackage` and `conf` are what would be in a repository of one's own; nothing in src/ knows of them.
"""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import SMALL, CommandLine, obey
from torch.nn.functional import pad

import aiayn
from aiayn.checkpoints import checkpoint
from aiayn.runs.run import Run

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CONF = ("--config-dir", str(HERE / "conf"))
ROWS = ("mine_near", "mine_kerple")
TRUST = ["mypackage"]
TRUSTED = f"trust=[{','.join(TRUST)}]"
TINY = [value for value in SMALL if not value.startswith(("data.vocab_size", "inference"))]
TINY += ["training.max_steps=72", "training.checkpoint_steps=9", "training.validate_steps=36"]
TINY += ["inference=beam", "inference.beam=3", "inference.max_extra_length=2"]
PAD, _, BOS, EOS = range(4)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def table(outputs: Path) -> Path:
    """The folder of `sweep=mine`, whose rows were trained by commands of their own."""
    for row in ROWS:
        folder = outputs / "sweeps" / "mine" / row
        assert obey(*CONF, f"experiment={row}", *TINY, f"outputs={outputs}", f"run_dir={folder}") == 0
    return outputs / "sweeps" / "mine"


@pytest.fixture(params=ROWS)
def model(request: pytest.FixtureRequest, table: Path) -> Any:
    """A trained model as another command reads it, whose embeddings are far from uniform."""
    model = checkpoint.read(table / request.param).model(trust=TRUST)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.embedding.weight, std=0.5)
    return model


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_own_parts_corpus_and_callback_are_trained(table: Path) -> None:
    done = result(table / "mine_near")
    assert (done["status"], done["steps"]) == ("done", 72)
    named = {"distance", "experts", "sandwich", "reversal", "shrink"}
    assert {f"mypackage.{name}" for name in named} <= set(done["made_of"])
    assert "trust" not in checkpoint.read_raw(table / "mine_near" / "checkpoints" / "best.ckpt")["config"]


def test_ones_own_metric_scores_each_checkpoint(table: Path) -> None:
    done = result(table / "mine_near")
    for name in ("last", "best", "averaged"):
        score = done["scores"][name]["dev"]["word_f1"]
        assert 0 < score["value"] <= 100
        assert (score["name"], score["signature"]) == ("word F1", "words:spaces|refs:1")


def test_the_best_checkpoint_is_the_best_by_ones_own_metric(table: Path) -> None:
    curve = Run.read(table / "mine_near", row="").metrics["dev/word_f1"]
    best = checkpoint.read_raw(table / "mine_near" / "checkpoints" / "best.ckpt")
    assert best["global_step"] == curve[0][curve[1].argmax()] + 1  # where the log counts from 0
    assert result(table / "mine_near")["scores"]["best"]["dev"]["word_f1"]["value"] == pytest.approx(curve[1].max())


def test_an_auxiliary_loss_is_logged_by_its_name(table: Path) -> None:
    assert (Run.read(table / "mine_near", row="").metrics["train/balance"][1] > 0).all()
    assert "train/balance" not in Run.read(table / "mine_kerple", row="").metrics


def test_padding_has_no_part_in_an_auxiliary_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    from mypackage.experts import Experts

    from aiayn.model.view import View

    torch.manual_seed(1)
    part, x = Experts(5, 7, experts=3, balance=0.1), torch.randn(2, 11, 5)
    places, real = torch.arange(11), torch.ones(2, 11, dtype=torch.bool)
    real[:, 7:] = False
    padded, without = View(places, places, real=real), View(places[:7], places[:7])
    part(x, view=padded)
    part(x[:, :7], view=without)
    torch.testing.assert_close(padded.auxiliary, without.auxiliary)


def test_cached_steps_of_reordered_beams_equal_the_full_pass(model: Any) -> None:
    torch.manual_seed(2)
    words = model.embedding.num_embeddings
    source = torch.randint(4, words, (2, 7))
    source[1, 5:] = PAD
    state, beams = model.start(source), torch.full((2, 1, 1), BOS)
    for length in range(1, 7):
        logits = model.step(beams[..., -1], state)
        for row in range(2):
            batch = SimpleNamespace(
                source=source[row].expand(beams.size(1), -1), target=pad(beams[row], (0, 1), value=EOS), padded=row == 1
            )
            whole = model.project(model(batch).features)[:, -1]
            torch.testing.assert_close(logits[row], whole, atol=1e-4, rtol=1e-4)
        chosen = torch.randint(beams.size(1), (2, 3))  # each beam goes on from one of the former
        state.reorder(chosen)
        beams = beams.gather(1, chosen[..., None].expand(-1, -1, length))
        beams = torch.cat([beams, torch.randint(4, words, (2, 3, 1))], dim=-1)


def test_a_run_that_resumes_ends_with_the_same_bits(table: Path, outputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(table / "mine_near", folder)
    (folder / "checkpoints" / "step_0000072.ckpt").unlink()
    (folder / "result.json").write_text(json.dumps({**result(folder), "status": "running"}))
    assert obey(*CONF, "experiment=mine_near", *TINY, f"outputs={outputs}", f"run_dir={folder}") == 0
    before, after = (
        checkpoint.read_raw(place / "checkpoints" / "step_0000072.ckpt") for place in (table / "mine_near", folder)
    )
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(after[key], before[key], atol=0, rtol=0)


def test_evaluating_a_file_again_gives_the_scores_of_the_run(
    table: Path, in_process: CommandLine, tmp_path: Path
) -> None:
    ask = (*CONF, "task=evaluate", f"checkpoint={table / 'mine_near'}", "data.split=dev", f"run_dir={tmp_path}")
    refused = in_process(*ask)
    assert refused.returncode == 1
    assert TRUSTED in refused.stderr
    assert refused.stderr.count("\n") == 1
    done = in_process(*ask, TRUSTED, "metrics=[word_f1]", "objective=word_f1")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "evaluation.json").read_text())["scores"]["averaged"]["dev"]["word_f1"]
    assert found == result(table / "mine_near")["scores"]["averaged"]["dev"]["word_f1"]


def test_a_notebook_opens_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    with pytest.raises(ValueError, match=re.escape(TRUSTED)):
        aiayn.load(table / "mine_near")
    assert aiayn.load(table / "mine_near", trust=TRUST).translate(["oak ash"])


def test_an_export_reads_back_and_another_program_refuses_it(
    table: Path, in_process: CommandLine, tmp_path: Path
) -> None:
    ask = (*CONF, "task=export", f"checkpoint={table / 'mine_near'}", TRUSTED)
    assert in_process(*ask, "format=safetensors", f"output={tmp_path}/out").returncode == 0
    assert checkpoint.read(tmp_path / "out").model(trust=TRUST)
    refused = in_process(*ask, "format=ctranslate2", f"output={tmp_path}/other")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "CTranslate2 does not know: DistanceAttention, Experts, SandwichNorm" in refused.stderr


def test_the_plan_counts_the_third_matrix_of_a_gated_network(in_process: CommandLine, tmp_path: Path) -> None:
    def flops(feed_forward: str) -> float:
        output = tmp_path / f"{feed_forward}.json"
        sizes = (f"model/feed_forward={feed_forward}", f"plan.output={output}")
        done = in_process(*CONF, "task=plan", "experiment=mine_kerple", *TINY, *sizes)
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text())["rows"][0]["flops_per_step"]

    matrix = 16 * 32 * 2 * 3  # a token's products with a d_model x d_ff matrix, forward and twice backward
    assert flops("bilinear") - flops("relu") == pytest.approx(2 * 512 * matrix, rel=0.01)


def test_a_run_says_the_flops_of_what_it_was_made_of(table: Path) -> None:
    assert result(table / "mine_kerple")["flops"] > 0


def test_a_sweep_of_ones_own_passes_over_what_is_done(table: Path, outputs: Path, in_process: CommandLine) -> None:
    done = in_process(*CONF, "sweep=mine", *TINY, f"outputs={outputs}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done before") >= 2


def test_an_own_part_that_has_changed_makes_its_row_stale(
    table: Path, outputs: Path, in_process: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(HERE, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "mine" / "mypackage" / "distance.py").open("a") as file:
        file.write("# another thought\n")
    done = in_process(
        "--config-dir", str(tmp_path / "mine" / "conf"), "task=status", "sweep=mine", *TINY, f"outputs={outputs}"
    )
    assert "stale (mypackage.distance)" in " ".join(done.stdout.split())
    assert done.stdout.count("stale (") == 1


def test_the_report_has_ones_own_metric_and_judges_ones_own_claim(
    table: Path, outputs: Path, in_process: CommandLine
) -> None:
    done = in_process(*CONF, "task=report", "sweep=mine", "claims=mine", *TINY, f"outputs={outputs}")
    assert done.returncode == 0, done.stderr
    assert "Attention to what is near is better than a logarithmic kernel." in done.stdout
    assert "only on these sentences" in done.stdout
    with (table / "report" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {row["row"]: float(row["word_f1"]) for row in rows}
    expected = {name: result(table / name)["scores"]["last"]["dev"]["word_f1"]["value"] for name in ROWS}
    assert found == pytest.approx(expected, abs=0.01)


def test_a_folder_of_strangers_runs_is_reported_by_those_metrics_that_are_trusted(
    table: Path, in_process: CommandLine, tmp_path: Path
) -> None:
    shutil.copytree(table, tmp_path / "table", ignore=shutil.ignore_patterns("checkpoints", "report"))
    ask = (*CONF, "task=report", f"folder={tmp_path / 'table'}", "claims=mine", "objective=word_f1")
    trusting = in_process(*ask, TRUSTED)
    assert "only on these sentences" in trusting.stdout
    doubting = in_process(*ask)
    assert "trust=[mypackage]" in doubting.stdout + doubting.stderr


def test_an_idea_is_one_file_and_one_yaml() -> None:
    page = (HERE.parents[1] / "docs" / "own_idea.md").read_text()
    ideas = [line.strip("|").split("|") for line in page.splitlines() if re.search(r"^\|[^|]+\| `\w+\.py`", line)]
    listed = {idea.strip(): re.findall("`(.+?)`", files) for idea, files, _ in ideas}
    for idea, files in listed.items():
        assert [Path(file).suffix for file in files] == [".py", ".yaml"], idea
        assert all((HERE / place / file).is_file() for place, file in zip(("mypackage", "conf"), files, strict=True)), (
            idea
        )
    assert {files[0] for files in listed.values()} == {path.name for path in (HERE / "mypackage").glob("[!_]*.py")}
