import errno
import gzip
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from aiayn.data.batching import (
    TENSORS,
    PairDataset,
    Step,
    StepLoader,
    TokenBatchSampler,
    _equal_shares,
)
from aiayn.data.ragged import EncodedPairs, Ragged, encode_pairs
from aiayn.data.replica import Replica
from aiayn.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabularies

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def pairs_of(count: int, longest: int = 23) -> EncodedPairs:
    """Pairs of correlated lengths whose tokens name the pair and the position."""
    random = np.random.default_rng(7)
    source = random.integers(1, longest, size=count)
    target = np.clip(source + random.integers(-3, 4, size=count), 1, longest - 1)
    sides = ([row * 31 + np.arange(length) + 4 for row, length in enumerate(lengths)] for lengths in (source, target))
    return EncodedPairs(*(Ragged.join(side) for side in sides))


def sampler_of(pairs: EncodedPairs, tokens_per_batch: int = 211, **settings: Any) -> TokenBatchSampler:
    lengths = pairs.source.lengths + 1, pairs.target.lengths + 1
    return TokenBatchSampler(*lengths, tokens_per_batch=tokens_per_batch, **settings)


def loader_of(pairs: EncodedPairs, *, workers: int = 0, **settings: Any) -> StepLoader:
    return StepLoader(PairDataset(pairs), sampler_of(pairs, **settings), workers=workers)


def epoch_of(sampler: TokenBatchSampler, epoch: int = 0) -> list[list[list[int]]]:
    """The rows of every micro-batch of every step."""
    sampler.set_epoch(epoch)
    return [[rows.tolist() for rows in micro_batches] for micro_batches, _ in sampler]


def indices(steps: Iterable[Step]) -> list[list[list[int]]]:
    return [[batch.indices.tolist() for batch in step.batches] for step in steps]


def test_an_epoch_holds_every_pair_once_and_no_step_exceeds_the_budget() -> None:
    pairs = pairs_of(509)
    sampler = sampler_of(pairs)
    steps = [rows for (rows,) in epoch_of(sampler)]
    assert len(steps) == len(sampler) == sampler.steps
    assert sorted(chain(*steps)) == list(range(509))
    for lengths in (sampler.source_lengths, sampler.target_lengths):
        assert max(lengths[rows].sum() for rows in steps) <= 211
    costs = [sampler.cost[rows].sum() for rows in steps]
    assert min(costs) > 0.5 * 211  # no tiny last step


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_epoch_has_the_same_number_of_steps(seed: int, shuffle: bool) -> None:
    sampler = sampler_of(pairs_of(509), seed=seed, shuffle=shuffle)
    assert {len(epoch_of(sampler, epoch)) for epoch in range(7)} == {sampler.steps}


@pytest.mark.parametrize("tokens_per_batch", [131, 100_003])
def test_topology_does_not_change_a_step(tokens_per_batch: int) -> None:
    """1 replica x 4 accumulations, 2 x 2 and 4 x 1 see the same steps, and the same micro-batches in them."""
    pairs = pairs_of(509)
    whole = epoch_of(sampler_of(pairs, tokens_per_batch))
    seen = []
    for count, accumulation in ((1, 4), (2, 2), (4, 1)):
        settings = {"tokens_per_batch": tokens_per_batch, "accumulation": accumulation}
        replicas = [epoch_of(sampler_of(pairs, replica=Replica(count, index), **settings)) for index in range(count)]
        steps = [list(chain(*parts)) for parts in zip(*replicas, strict=True)]
        for (rows,), micro_batches in zip(whole, steps, strict=True):
            assert len(micro_batches) == 4
            assert sorted(chain(*micro_batches)) == sorted(rows)
        seen.append(steps)
    assert seen[0] == seen[1] == seen[2]


def test_the_tokens_of_a_step_are_the_targets_of_all_replicas() -> None:
    pairs = pairs_of(101)
    loaders = [loader_of(pairs, replica=Replica(2, index), accumulation=3) for index in range(2)]
    for parts in zip(*loaders, strict=True):
        batches = [batch for step in parts for batch in step.batches]
        total = sum(int((batch.target[:, 1:] != PAD).sum()) for batch in batches)
        assert len(batches) == 6
        assert {step.tokens for step in parts} == {total}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("tokens_per_batch", [23, 24, 29, 41, 53, 1009])
def test_tiny_corpora_have_no_step_without_a_pair(count: int, tokens_per_batch: int) -> None:
    pairs = pairs_of(count)
    for epoch in range(3):
        sampler = sampler_of(pairs, tokens_per_batch)
        steps = [rows for (rows,) in epoch_of(sampler, epoch)]
        assert sorted(chain(*steps)) == list(range(count))
        assert all(rows and sampler.cost[rows].sum() <= tokens_per_batch for rows in steps)


@pytest.mark.parametrize("seed", range(53))
def test_no_step_is_empty_or_over_the_budget_when_few_pairs_are_long(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(37) < 0.3, 97, random.integers(1, 5, size=37))
    budget = int(lengths.max() + random.integers(0, 199))
    sampler = TokenBatchSampler(lengths, lengths[::-1], tokens_per_batch=budget)
    steps = [rows for (rows,) in epoch_of(sampler)]
    assert sorted(chain(*steps)) == list(range(37))
    assert all(rows and sampler.cost[rows].sum() <= budget for rows in steps)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ([2, 2, 2, 2, 2, 2], [0, 2, 4, 6]),
        ([97, 1, 1, 1, 1, 1], [0, 1, 2, 6]),
        ([1, 1, 1, 1, 1, 97], [0, 4, 5, 6]),
        ([5, 7], [0, 1, 2, 2]),
    ],
)
def test_shares_are_equal_and_none_is_empty_while_there_are_enough_pairs(cost: list[int], expected: list[int]) -> None:
    assert _equal_shares(np.array(cost), 3).tolist() == expected


def test_a_micro_batch_without_pairs_is_a_filler_with_nothing_to_predict() -> None:
    pairs = pairs_of(2)
    (step,) = loader_of(pairs, accumulation=5)
    batches = step.batches
    assert sorted(batch.indices.tolist() for batch in batches[:2]) == [[0], [1]]
    assert [batch.indices.tolist() for batch in batches[2:]] == [[-1], [-1], [-1]]
    assert batches[4].source.tolist() == [[EOS]]
    assert batches[4].target.tolist() == [[BOS, PAD]]
    assert len(batches[4].positions) == 0 < len(batches[0].positions)


def test_micro_batches_share_a_step_evenly() -> None:
    sampler = sampler_of(pairs_of(509), 499, accumulation=4)
    longest = int(sampler.cost.max())
    costs = np.array([[sampler.cost[rows].sum() for rows in step] for step in epoch_of(sampler)])
    assert (costs <= costs.sum(axis=1, keepdims=True) / 4 + longest).all()


def test_a_batch_holds_the_sentences_of_its_rows() -> None:
    pairs = pairs_of(101)
    for batch in chain(*(step.batches for step in loader_of(pairs, accumulation=2))):
        for index, source, target in zip(batch.indices.tolist(), batch.source, batch.target, strict=True):
            expected = [*pairs.source[index].tolist(), EOS]
            assert source.tolist() == expected + [PAD] * (len(source) - len(expected))
            expected = [BOS, *pairs.target[index].tolist(), EOS]
            assert target.tolist() == expected + [PAD] * (len(target) - len(expected))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    pairs = pairs_of(509)
    sampler = sampler_of(pairs, seed=5)
    first = epoch_of(sampler, 3)
    assert first == epoch_of(sampler, 3) == epoch_of(sampler_of(pairs, seed=5), 3)
    assert first != epoch_of(sampler, 4)
    assert first != epoch_of(sampler_of(pairs, seed=6), 3)
    unshuffled = sampler_of(pairs, seed=5, shuffle=False)
    assert epoch_of(unshuffled, 3) == epoch_of(sampler_of(pairs, seed=6, shuffle=False), 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_in_the_middle_of_an_epoch(workers: int) -> None:
    pairs = pairs_of(101)
    undisturbed = loader_of(pairs, accumulation=3)
    expected = []
    for epoch in range(3):
        undisturbed.token_sampler.set_epoch(epoch)
        expected.append(indices(undisturbed))

    killed = loader_of(pairs, accumulation=3, workers=workers)
    killed.token_sampler.set_epoch(1)
    steps = iter(killed)
    for _ in range(3):
        next(steps)
    state = killed.state_dict()
    assert state == {"epoch": 1, "steps": 3}

    resumed = loader_of(pairs, accumulation=3, workers=workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.token_sampler.set_epoch(1)  # as Lightning does
    assert indices(resumed) == expected[1][3:]
    assert resumed.state_dict() == {"epoch": 1, "steps": len(expected[1])}
    resumed.token_sampler.set_epoch(2)
    assert indices(resumed) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_from_the_end_of_an_epoch_does_not_shorten_the_next(workers: int) -> None:
    pairs = pairs_of(101)
    loader = loader_of(pairs, workers=workers)
    loader.load_state_dict({"epoch": 0, "steps": len(loader)})
    loader.token_sampler.set_epoch(1)
    assert sorted(chain(*chain(*indices(loader)))) == list(range(101))


def test_batches_of_workers_need_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensor: torch.Tensor) -> NoReturn:
        raise RuntimeError("unable to write to file: No space left on device")

    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, full)
    step = next(iter(loader_of(pairs_of(101), accumulation=2)))
    same = pickle.loads(ForkingPickler.dumps(step))  # what torch's worker does, in a thread that only prints errors
    for ours, theirs in zip(same.batches, step.batches, strict=True):
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in TENSORS)
    assert same.tokens == step.tokens


def test_workers_that_cannot_start_are_told_with_the_key(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def full(*arguments: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.multiprocessing, "Queue", full)
    with pytest.raises(ValueError, match=r"data\.loader_workers=2: .*No space left on device; make room .* or give 0"):
        next(iter(loader_of(pairs_of(101), workers=2)))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_workers_do_with_little_shared_memory() -> None:
    code = """if True:
        from test_batching import loader_of, pairs_of
        print(sum(len(step.batches[0].indices) for step in loader_of(pairs_of(101), workers=2)))
    """
    mounting = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mounting, "true"], capture_output=True).returncode:
        pytest.skip("needs to mount a folder of its own")
    done = subprocess.run(
        [*mounting, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("101\n", "")


def test_beginning_an_epoch_leaves_the_random_state_as_it_was() -> None:
    before = torch.get_rng_state()
    next(iter(loader_of(pairs_of(101))))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [2, 3, 5, 6])
def test_lightning_resumes_where_it_was(tmp_path: Path, workers: int, stop: int) -> None:
    """A run saved at a step in the middle of an epoch (2, 5), or at its end (3, 6), sees the rest, once."""
    lightning = pytest.importorskip("lightning.pytorch")
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    pairs = pairs_of(23)

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[list[list[int]]] = []

        def training_step(self, step):
            self.seen += indices([step])
            return self.weight * 0

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps: int, resume: Path | None = None) -> list[list[list[int]]]:
        model = Model()
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
        )
        loader = loader_of(pairs, workers=workers, accumulation=2, tokens_per_batch=149)
        assert loader.token_sampler.steps == 3
        trainer.fit(model, loader, ckpt_path=resume)
        return model.seen

    undisturbed = fit(8)
    assert len(undisturbed) == 8
    assert fit(8, resume=tmp_path / f"step={stop}.ckpt") == undisturbed[stop:]


def test_steps_move_and_stay_steps() -> None:
    step = next(iter(loader_of(pairs_of(11), accumulation=2)))
    moved = step.to("meta")
    assert {batch.source.device.type for batch in moved.batches} == {"meta"}
    assert (len(moved.batches), moved.tokens) == (2, step.tokens)


def test_a_move_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(torch.Tensor, "to", lambda x, device, *, non_blocking: waits.append(not non_blocking) or x)
    next(iter(loader_of(pairs_of(11)))).to("cpu")
    assert waits == [False] * len(TENSORS)


def test_padding_efficiency_is_the_share_of_real_tokens() -> None:
    pairs = pairs_of(509)
    sampler = sampler_of(pairs, 211, accumulation=2)
    batches = list(chain(*(step.batches for step in StepLoader(PairDataset(pairs), sampler))))
    real = sum(int((batch.source != PAD).sum() + (batch.target[:, 1:] != PAD).sum()) for batch in batches)
    padded = sum(batch.source.numel() + batch.target[:, 1:].numel() for batch in batches)
    assert math.isclose(sampler.padding_efficiency(), real / padded)


def test_steps_of_a_large_corpus_have_near_equal_lengths_on_both_sides() -> None:
    """The source of these pairs is half to twice as long as the target: the longer side alone gives 94.5 %."""
    random = np.random.default_rng(7)
    target = random.integers(11, 97, size=50_021)
    source = (target * np.exp2(random.uniform(-1, 1, size=len(target)))).astype(int)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=4099)
    assert sampler.padding_efficiency() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("tokens_per_batch", "accumulation"), [(25000, 4), (4096, 1)])
def test_multi30k_is_at_least_95_percent_real_tokens(tokens_per_batch: int, accumulation: int) -> None:
    sides = []
    for language in ("en", "de"):
        path = SHARED / "multi30k" / f"train.{language}.gz"
        if not path.is_file():
            pytest.skip("needs ../shared/data/multi30k")
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            sides.append(file.read().split("\n")[:-1])
    tokenizer = Tokenizer.train(chain(*sides), vocab_size=8000, character_coverage=1.0)
    sampler = sampler_of(
        encode_pairs(Vocabularies.joint(tokenizer), *sides), tokens_per_batch, accumulation=accumulation
    )
    assert sampler.padding_efficiency() >= 0.95


def test_too_small_budgets_name_the_longest_pair() -> None:
    pairs = pairs_of(101)
    with pytest.raises(ValueError, match=r"data\.tokens_per_batch=22 is smaller than the longest pair \(23 tokens\)"):
        sampler_of(pairs, 22)
    with pytest.raises(ValueError, match="A split without pairs has no batches"):
        TokenBatchSampler(np.array([]), np.array([]), tokens_per_batch=211)
