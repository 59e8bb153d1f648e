"""A config with `data.mixture`: the batches of its training, what they cost, and what makes it another experiment."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import SMALL, Told
from omegaconf import DictConfig, OmegaConf

from aiayn.checkpoints.building import described
from aiayn.commands.plan import plan_row, read_assumptions
from aiayn.commands.train import train
from aiayn.cost.counting import mean_pair_flops
from aiayn.data.batching import StepLoader
from aiayn.data.builder import SIDES
from aiayn.data.mixture import Mixture, texts_of
from aiayn.data.ragged import EncodedPairs, Ragged
from aiayn.data.replica import ALONE, Replica
from aiayn.identity import identity, made_of
from aiayn.paths import make_absolute
from aiayn.problems.translation import Translation
from aiayn.runs.run import Run

SYNTHETIC = (
    "+data.mixture.synthetic={weight: 0.3, corpus: {_target_: aiayn.data.corpora.numbers.Numbers, source_language: en, "
    "target_language: de, pairs: 401, dev: 1, test: 1, seed: 2}}"
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the corpora of this file are."""
    return tmp_path_factory.mktemp("outputs")


def problem_of(cfg: DictConfig) -> Translation:
    problem = Translation(cfg)
    problem.prepare()
    return problem


def steps_of(problem: Translation, *, replica: Replica = ALONE, accumulation: int = 1) -> StepLoader:
    """The training batches of a problem, as Lightning asks for them."""
    module = problem.batches(problem.step_size(512, fits_corpus=False), accumulation=accumulation, replica=replica)
    strategy = SimpleNamespace(root_device=SimpleNamespace(type="cpu"))
    module.trainer = SimpleNamespace(strategy=strategy)  # type: ignore[assignment]
    return module.train_dataloader()


def test_a_config_with_a_mixture_trains_on_all_and_says_what_an_epoch_has(
    told: Told, outputs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    problem = problem_of(told(*SMALL, f"outputs={outputs}", SYNTHETIC))
    main, other = (one["kept"] for one in problem.prepared.statistics["corpora"].values())
    assert problem.size("train") == main + other
    assert problem.splits() == ["train", "dev", "test"]
    loader = steps_of(problem)
    rows = [row for step in loader for batch in step.batches for row in batch.indices.tolist()]
    assert sum(row < main for row in rows) == main
    assert len(rows) == len(set(rows)) == main + round(0.3 * other)
    said = f"an epoch has {len(loader)} steps: {main} of the {main} pairs of data.corpus, "
    said += f"{round(0.3 * other)} of the {other} pairs of data.mixture.synthetic"
    assert said in caplog.messages


def test_a_resumed_training_sees_the_batches_of_an_undisturbed_one_on_every_replica(told: Told, outputs: Path) -> None:
    problem = problem_of(told(*SMALL, f"outputs={outputs}", SYNTHETIC))
    for replica in (Replica(2, 0), Replica(2, 1)):
        whole = steps_of(problem, replica=replica, accumulation=2)
        resumed = steps_of(problem, replica=replica, accumulation=2)
        whole.token_sampler.set_epoch(3)
        undisturbed = list(whole)
        resumed.load_state_dict({"epoch": 3, "steps": 5})
        for one, other in zip(undisturbed[5:], resumed, strict=True):
            assert one.tokens == other.tokens
            for mine, theirs in zip(one.batches, other.batches, strict=True):
                assert torch.equal(mine.source, theirs.source)
                assert torch.equal(mine.target, theirs.target)


def test_weights_share_a_prepared_corpus_and_are_other_experiments(told: Told, outputs: Path) -> None:
    plain, light, heavy = (
        told(*SMALL, f"outputs={outputs}", *more)
        for more in ((), (SYNTHETIC,), (SYNTHETIC, "data.mixture.synthetic.weight=2"))
    )
    paths = [problem_of(cfg).folder for cfg in (plain, light, heavy)]
    assert paths[0] != paths[1] == paths[2]
    plain, light, heavy = (OmegaConf.to_container(cfg) for cfg in (plain, light, heavy))
    assert identity(plain) != identity(light) != identity(heavy)
    assert identity(plain) == identity({**plain, "data": {k: v for k, v in plain["data"].items() if k != "mixture"}})
    assert made_of(plain, own=True)["text"] != made_of(light, own=True)["text"] == made_of(heavy, own=True)["text"]


def test_the_cost_of_a_target_token_is_that_of_the_pairs_that_are_seen(told: Told) -> None:
    problem = Translation(told(*SMALL, SYNTHETIC))
    rows = np.array([0, 1, 1, 1])  # of an epoch
    source, target = np.array([[3, 23], [7, 13]])
    sides = (Ragged.join([np.zeros(length - 1, np.int32) for length in side]) for side in (source, target))
    pairs, mixture = EncodedPairs(*sides), Mixture([1, 1], [1, 3])
    problem.corpus = SimpleNamespace(pairs=lambda split: pairs, mixture=lambda weights: mixture)  # type: ignore[assignment]
    model = described(OmegaConf.to_container(problem.cfg.model), vocab_size=31)
    micro_batch = int(512 // target[rows].mean())
    expected = 4 * mean_pair_flops(model, source=source[rows], target=target[rows], pairs=micro_batch)
    assert problem.flops(model, int(target[rows].sum())) == pytest.approx(expected, rel=1e-9)


def test_the_order_in_which_corpora_are_named_does_not_matter(told: Told) -> None:
    other = SYNTHETIC.replace("synthetic", "another").replace("seed: 2", "seed: 3")
    one, two = (texts_of(told(*SMALL, *mixture).data) for mixture in ((SYNTHETIC, other), (other, SYNTHETIC)))
    assert list(one) == list(two) == ["data.corpus", "data.mixture.another", "data.mixture.synthetic"]


def test_a_plan_refuses_a_mixture_without_text_and_costs_what_its_steps_cost(told: Told) -> None:
    plain, mixed = told(*SMALL, "task=plan"), told(*SMALL, "task=plan", SYNTHETIC)
    assumptions = read_assumptions({**plain.plan, "devices": 1})
    assert plan_row(plain, "x", assumptions) == plan_row(mixed, "x", assumptions)
    mixed.data.mixture.synthetic.corpus = {"_target_": "aiayn.data.corpora.text.TextFiles"}
    assert "data.mixture.synthetic.corpus has no train" in (plan_row(mixed, "x", assumptions).refused or "")


def test_paths_in_a_mixture_are_from_the_root_and_where_text_lies_is_no_experiment(tmp_path: Path) -> None:
    cfg = OmegaConf.create(
        {
            "data": {
                "mixture": {
                    "x": {"weight": 1, "corpus": {"path": "a", "train": {"source": ["b"]}, "files": {"train": "c"}}}
                }
            }
        }
    )
    make_absolute(cfg)
    corpus = cfg.data.mixture.x.corpus
    found = [corpus.path, *corpus.train.source, corpus.files.train]
    assert found == [str(Path(name).absolute()) for name in "abc"]
    of_text = {f"data.mixture.x.corpus.{key}" for key in ("train.source", "files.train")}
    assert set(identity(OmegaConf.to_container(cfg))) == {"data.mixture.x.weight", *of_text}


class Own:
    """A corpus of one's own, as far as its text is told from others."""

    def fingerprint(self) -> dict[str, str]:
        return {"train": "1"}


def test_a_stored_mixture_is_asked_for_its_text_only_where_it_is_ours() -> None:
    ours = {"_target_": "aiayn.data.corpora.numbers.Numbers", "pairs": 3, "dev": 1, "test": 1}
    for corpus, known in ((ours | {"seed": 2}, True), ({"_target_": f"{__name__}.Own"}, False)):
        config = {"data": {"corpus": ours, "mixture": {"x": {"weight": 1, "corpus": corpus}}}}
        assert ("text" in made_of(config, own=True), "text" in made_of(config, own=False)) == (True, known)
    stored = {"status": "done", "config": config, "made_of": {"text": "0"}}
    for planned, stale in (
        (config, ["text"]),
        ({"data": {"corpus": ours}}, []),
    ):  # the latter names no class of its own
        assert Run(Path("nowhere"), "x", planned, stored, planned=True).changed == stale


def test_a_run_on_a_mixture_ends_with_figures_of_it(
    told: Told, outputs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    few = ["training.max_steps=3", "training.validate_steps=3", "metrics=[perplexity]", "objective=perplexity"]
    train(told(*SMALL, *few, f"outputs={outputs}", f"run_dir={outputs}/run", SYNTHETIC))
    result = json.loads((outputs / "run" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 3)
    statistics = json.loads((outputs / "prepared" / result["corpus"] / "statistics.json").read_text())
    main, other = (
        {side: one["tokens"][side] + one["kept"] for side in SIDES} for one in statistics["corpora"].values()
    )
    steps = int(re.search(r"an epoch has (\d+) steps", caplog.text)[1])  # type: ignore[index]
    for side in SIDES:
        assert result[f"{side}_tokens_per_step"] == pytest.approx((main[side] + 0.3 * other[side]) / steps, rel=0.002)
