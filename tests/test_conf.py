"""What a user types composes to what they mean."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, CommandLine, composed
from hydra.utils import instantiate
from omegaconf import OmegaConf

from aiayn import identity, resolvers, schema
from aiayn.evaluation.metric import counted
from aiayn.training.schedule.inverse_sqrt import learning_rate

row = partial(identity.row, objective="bleu")
OF_TREES = {"evalb", "evalb_40"}  # the metrics of trees; all others are of text
OF_PARSES = {*OF_TREES, "mended"}
GROUPS = (
    "task",
    "data",
    "problem",
    "model",
    "training",
    "inference",
    "metrics",
    "trainer",
    "callbacks",
    "logger",
    "experiment",
    "scale",
    "recipe",
    "launcher",
    "debug",
)
NEEDED = {
    "task=evaluate": ["checkpoint=x"],
    "task=translate": ["checkpoint=x"],
    "task=parse": ["checkpoint=x"],
    "task=serve": ["checkpoint=x"],
    "task=rescore": ["checkpoint=x", "source=a", "target=b"],
    "task=compare": ["a=x", "b=y"],
    "task=diff": ["a=x", "b=y"],
    "task=attention": ["checkpoint=x", "sentence=y"],
    "task=heads": ["run=x"],
    "task=clean": ["run=x"],
    "task=export": ["checkpoint=x", "output=y"],
    "task=average": ["checkpoints=[x]", "output=y"],
    "task=score": ["hypotheses=x", "references=y"],
    "data=text": ["data.train={source: a, target: b}", "data.dev={source: a, target: b}"],
}


def choices() -> list[str]:
    """Every file of every group, as a command line names it."""
    files = [(group, file.stem) for group in GROUPS for file in sorted((ROOT / "conf" / group).glob("*.yaml"))]
    parts = [
        (f"{group}/{part.name}", file.stem)
        for group in ("model", "training")
        for part in (ROOT / "conf" / group).iterdir()
        if part.is_dir()
        for file in part.glob("*.yaml")
    ]
    return [f"{group}={name}" for group, name in (*files, *sorted(parts))]


@pytest.mark.slow
@pytest.mark.parametrize("choice", choices())
def test_every_config_file_composes(choice: str) -> None:
    cfg = composed(choice, *NEEDED.get(choice, []))
    assert not OmegaConf.missing_keys(cfg)


@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "metrics").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_metric_counts_sentences_and_has_a_value_of_their_sums(file: Path) -> None:
    ((key, metric),) = instantiate(composed(f"metrics=[{file.stem}]").metrics).items()
    assert key == file.stem
    if key == "perplexity":  # of no text
        assert metric.value(np.array([[6.0, 2], [3, 1]]).sum(0)) == pytest.approx(np.exp(3))
        return
    if key == "mended":  # the problem counts it
        assert metric.value(np.array([[1, 1], [0, 1]]).sum(0)) == 50
        return
    if key in OF_TREES:
        hypotheses, references = ["(S (N a) (V (V b) (N c)))", "(X (N d))"], [["(S (N a) (V b) (N c))", "(X (N d))"]]
    else:
        hypotheses, references = ["one two three four five", "six"], [["one two three four six", "six"]] * 2
    score, counts = counted(metric, hypotheses, references, "en")
    assert len(counts) == 2
    assert 0 < score.value < 100
    assert key in OF_TREES or "nrefs:2" in score.signature
    assert score.higher_is_better == (key != "ter")


def test_a_run_has_all_metrics_of_text_unless_they_are_named() -> None:
    assert list(composed("metrics=[chrf,bleu]").metrics) == ["chrf", "bleu"]
    files = {file.stem for file in (ROOT / "conf" / "metrics").glob("*.yaml")}
    assert sorted(composed().metrics) == sorted(files - OF_PARSES)


def test_without_arguments_it_is_the_demo() -> None:
    cfg = composed()
    assert cfg.task == schema.TRAIN
    assert (cfg.model.name, cfg.data.name) == ("tiny", "numbers_ende")


def test_base_on_wmt14_is_the_papers_base_run() -> None:
    cfg = composed("model=base", "data=wmt14_ende")
    model = cfg.model
    assert (model.layers, model.d_model, model.d_ff, model.heads, model.d_k, model.d_v) == (6, 512, 2048, 8, 64, 64)
    assert (model.dropout, cfg.data.vocab_size, cfg.data.tokens_per_batch) == (0.1, 37000, 25000)
    training = cfg.training
    assert (training.max_steps, training.warmup_steps, training.learning_rate_scale) == (100000, 4000, 1.0)
    assert (training.betas, training.eps, training.label_smoothing) == ([0.9, 0.98], 1e-9, 0.1)
    assert (training.checkpoint_steps, training.checkpoint_minutes, training.keep_checkpoints) == (1500, None, 5)
    assert (cfg.inference.beam, cfg.inference.alpha, cfg.inference.max_extra_length) == (4, 0.6, 50)
    assert (cfg.data.corpus.name, cfg.data.corpus.subset) == ("wmt/wmt14", "de-en")
    assert len(cfg.data.corpus.revision) == 40  # a commit: the text does not change


@pytest.mark.parametrize(("data", "dropout", "vocab_size"), [("wmt14_ende", 0.3, 37000), ("wmt14_enfr", 0.1, 32000)])
def test_big_has_the_dropout_of_its_language_pair(data: str, dropout: float, vocab_size: int) -> None:
    cfg = composed("model=big", f"data={data}")
    assert (cfg.model.d_model, cfg.model.d_ff, cfg.model.heads, cfg.model.d_k) == (1024, 4096, 16, 64)
    training = cfg.training
    assert (training.max_steps, training.checkpoint_steps, training.keep_checkpoints) == (300000, 600, 20)
    assert (cfg.model.dropout, cfg.data.vocab_size) == (dropout, vocab_size)
    assert composed("model=big", f"data={data}", "model.dropout=0.2").model.dropout == 0.2


@pytest.mark.parametrize(("heads", "d_k"), [(1, 512), (4, 128), (8, 64), (16, 32), (32, 16)])
def test_heads_divide_the_model(heads: int, d_k: int) -> None:
    model = composed("model=base", f"model.heads={heads}").model
    assert (model.d_k, model.d_v, model.attention.d_k, model.attention.d_v) == (d_k,) * 4


def test_d_k_varies_on_its_own() -> None:
    model = composed("model=base", "model.d_k=16").model
    assert (model.d_k, model.d_v) == (16, 64)


def test_an_experiment_brings_the_recipe_of_the_model_that_it_names() -> None:
    cfg = composed("experiment=multi30k_tiny_ende", "model=big")
    assert cfg.training.keep_checkpoints == 10  # the experiment's own figure goes before the recipe's
    assert cfg.training.warmup_steps == 2000


# The values that each source says, in the units of our keys: rate at its highest, warm-up steps, beta_2, and what is
# dropped from sub-layers, attention weights and activations; then beam, alpha and beta of the search.
RECIPES = {
    "paper base": (6.99e-4, 4000, 0.98, (0.1, 0.0, 0.0), (4, 0.6, 5)),
    "paper big": (4.94e-4, 4000, 0.98, (0.3, 0.0, 0.0), (4, 0.6, 5)),
    "tensor2tensor base": (9.88e-4, 8000, 0.997, (0.1, 0.1, 0.1), (4, 0.6, 5)),
    "tensor2tensor big": (6.99e-4, 8000, 0.997, (0.3, 0.1, 0.1), (4, 0.6, 5)),
    "fairseq base": (5e-4, 4000, 0.98, (0.1, 0.0, 0.0), (4, 0.6, 0)),
    "fairseq big": (5e-4, 4000, 0.98, (0.3, 0.0, 0.0), (4, 0.6, 0)),
    "marian base": (3e-4, 16000, 0.98, (0.1, 0.0, 0.0), (8, 1.0, 0)),
    "marian big": (2e-4, 8000, 0.998, (0.1, 0.0, 0.0), (8, 1.0, 0)),
    "sockeye base": (1e-3, 4000, 0.98, (0.1, 0.1, 0.1), (5, 1.0, 0)),
    "sockeye big": (1e-3, 4000, 0.98, (0.1, 0.1, 0.1), (5, 1.0, 0)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_what_its_source_trains_with(name: str) -> None:
    recipe, size = name.split()
    cfg = composed(f"recipe={recipe}", f"model={size}", "data=wmt14_ende")
    model, training, inference = cfg.model, cfg.training, cfg.inference
    schedule = {key: training.schedule[key] for key in ("d_model", "warmup_steps", "learning_rate_scale")}
    rates = [learning_rate(step, **schedule) for step in range(1, 20000)]
    peak, warmup_steps, beta_2, dropouts, search = RECIPES[name]
    assert max(rates) == pytest.approx(peak, rel=2e-3)
    assert rates.index(max(rates)) + 1 == training.warmup_steps == warmup_steps
    assert training.betas == [0.9, beta_2]
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == dropouts
    assert (inference.beam, inference.alpha, inference.beta) == search
    pre_norm = recipe in ("tensor2tensor", "sockeye")
    assert model.norm._target_.endswith("PreNorm" if pre_norm else "PostNorm")
    assert (model.end is not None) == pre_norm
    assert ("ema" in cfg.callbacks) == (recipe == "marian")


@pytest.mark.parametrize(("recipe", "dropout"), [("paper", 0.1), ("fairseq", 0.1), ("tensor2tensor", 0.1)])
def test_the_recipes_that_drop_less_of_english_french_do(recipe: str, dropout: float) -> None:
    assert composed(f"recipe={recipe}", "model=big", "data=wmt14_enfr").model.dropout == dropout
    assert composed(f"recipe={recipe}", "model=base", "data=wmt14_enfr").model.dropout == 0.1


def test_a_row_of_a_sweep_is_named_by_what_makes_it_another_experiment() -> None:
    how = ["task=plan", "trainer=ddp_cpu", "trainer.devices=2", "launcher.parallel=3", "outputs=/a", "sweep=table3_a"]
    how += ["metrics=[bleu]"]
    assert row([*how, "seed=2", "experiment=table3_a_h1"]) == "table3_a_h1,seed=2"
    assert row(["+model.heads=4", "data.test_set=a/b"]) == "+model.heads=4,data.test_set=a_b"
    assert row(["data.vocab_size=9", "experiment=table3_a_h1"]) == "table3_a_h1,data.vocab_size=9"
    assert row(how) == "base"
    assert row(["callbacks.quality.samples=3", "callbacks.ema.decay=0.9"]) == "callbacks.ema.decay=0.9"
    assert row(["callbacks=ema", "seed=2"]) == "callbacks=ema,seed=2"
    assert row(["checkpoint=a/averaged.ckpt"]) != row(["checkpoint=b/averaged.ckpt"])
    assert row(["checkpoint=a/averaged.ckpt", "inference.beam=2"]).startswith("averaged-")
    assert row(["metrics.bleu.tokenize=char", "metrics.chrf.x=1"]) == "metrics.bleu.tokenize=char"
    assert identity.row(["metrics.chrf.x=1", "objective=chrf"], "chrf") == "metrics.chrf.x=1,objective=chrf"
    assert row(["checkpoint=a"]) == row([f"checkpoint={Path('a').absolute()}"]) != row(["checkpoint=b"])
    long = [row(["data.name=" + "x" * 200, f"seed={seed}"]) for seed in (1, 2)]
    assert [name[:17] for name in long] == ["seed=1,data.name=", "seed=2,data.name="]
    assert max(map(len, long)) <= 100


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "src" / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.head=8"], ["model.head", "heads"]),
        (["data=text"], ["data.train.source"]),
        (["task=translate", "checkpoint=/a=b.ckpt"], ["checkpoint=/a=b.ckpt", "quote"]),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    # In a process of its own, as a user sees it; bad_inputs.yaml has the others.
    done = run(*arguments, f"outputs={tmp_path}", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert all(word in lines[-1] for word in words), lines[-1]


def test_norwegian_is_a_language_and_no_truth_value() -> None:
    told = composed("task=score", "hypotheses=a", "references=b", "language=no", "data.target_language=no")
    schema.check_languages(told)
    assert (told.language, told.data.target_language) == ("no", "no")
    stored = OmegaConf.create(OmegaConf.to_yaml(told))
    assert (stored.language, stored.data.target_language) == ("no", "no")
    for key, text in (("language", "no"), ("data.target_language", "no"), ("data.source_language", "on")):
        cfg = composed("task=score", "hypotheses=a", "references=b")
        OmegaConf.update(cfg, key, OmegaConf.create(f"value: {text}").value)  # as a file of conf/ is read
        with pytest.raises(ValueError, match=f"{key} must be an ISO code.*quote it in the file, .*: 'no'"):
            schema.check_languages(cfg)


@pytest.mark.slow
def test_help_begins_with_what_this_is_and_has_groups_and_keys() -> None:
    done = run("--help")
    assert "\nmodel: base, big, small, tiny\n" in done.stdout  # without the types, which nobody chooses
    assert done.stdout.startswith("Experiments with the Transformer")
    assert "model/position: alibi, bucketed, learned, none, rotary, shaw, sinusoidal" in done.stdout
    assert "\nseed: 1\n" in done.stdout


@pytest.mark.slow
def test_the_help_of_a_task_has_its_own_keys_first(in_process: CommandLine) -> None:
    done = in_process("--help", "task=serve")
    assert (done.returncode, done.stderr) == (0, "")
    own, _, general = done.stdout.partition("Experiments with the Transformer")
    assert own.startswith("task=serve: Translate over HTTP")
    assert "model/position: alibi, bucketed, learned, none, rotary, shaw, sinusoidal" in general
    for file in (ROOT / "conf" / "task").glob("*.yaml"):
        overrides, choices = {"task": [f"task={file.stem}"]}, {"task": file.stem}
        sources = [{"schema": "structured", "path": ""}, {"schema": "file", "path": str(ROOT / "conf")}]
        hydra = {"overrides": overrides, "runtime": {"choices": choices, "config_sources": sources}}
        told = resolvers.own_help(_root_=OmegaConf.create({"hydra": hydra})).replace("$$", "$")
        about, *lines = [line.removeprefix("# ") for line in file.read_text().splitlines()[1:]]
        assert told.startswith(f"task={file.stem}: {about}\n")
        keys = yaml.safe_load(file.read_text()).keys() - {"defaults", "task", "hydra"}
        assert [line for line in lines if line.split(":")[0] in keys and line not in told] == []  # with what they mean
        assert not [word for word in ("defaults:", "task: ", "hydra:", "@package") if word in told]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["--cfg", "job"], ["model.head=8"]),
        *(["model=base", "model.heads=7"], ["training.betas=[0.9]"], ["~callbacks.speed"]),
    ],
    ids=" ".join,
)
def test_answers_without_loading_torch(arguments: list[str]) -> None:
    # Half a second instead of two. What was imported is asked, not the clock, which a busy machine bends.
    command = [sys.executable, "-X", "importtime", str(ROOT / "src" / "run.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hydra.main" in imported
    assert not imported & {"torch", "lightning", "wandb", "datasets"}
