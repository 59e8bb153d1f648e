"""Several corpora in one training: who is drawn when, by Mixture alone and by the batches of a training."""

import hashlib
import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_batching import epoch_of, indices, loader_of, pairs_of, sampler_of
from test_corpus import HELD_OUT, NOUNS, TRAIN, Lines, Pairs, decoded

from aiayn.data.batching import TokenBatchSampler
from aiayn.data.builder import Builder
from aiayn.data.cleaning import EMPTY, KEPT, Cleaning
from aiayn.data.corpora.text import TextFiles
from aiayn.data.corpus import Corpus, prepare
from aiayn.data.mixture import MAIN, Mixture
from aiayn.data.parallel_text import ParallelText
from aiayn.data.ragged import EncodedPairs
from aiayn.data.replica import Replica
from aiayn.data.step_size import StepSize
from aiayn.data.tokenizer import UNK

SIZES = (101, 211, 53, 17)
WEIGHTS = (1, 0.5, 0.3, 2.7)
PAIRS = pairs_of(sum(SIZES))
BOUNDS = np.cumsum((0, *SIZES))


def mixed(tokens_per_batch: int = 211, **settings) -> TokenBatchSampler:
    return sampler_of(PAIRS, tokens_per_batch, mixture=Mixture(SIZES, WEIGHTS), **settings)


def seen(sampler: TokenBatchSampler, epochs: int) -> np.ndarray:
    """How often each pair is in each epoch, `(epochs, pairs)`."""
    found = np.zeros((epochs, len(sampler.cost)), int)
    for epoch in range(epochs):
        for row in chain(*chain(*epoch_of(sampler, epoch))):
            found[epoch, row] += 1
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pair_is_seen_as_often_as_its_weight_says_to_within_once(seed: int) -> None:
    mixture = Mixture(SIZES, WEIGHTS)
    epochs = seen(mixed(seed=seed), 20)
    for start, stop, weight, size in zip(BOUNDS, BOUNDS[1:], WEIGHTS, SIZES, strict=False):
        share = epochs[:, start:stop]
        assert set(share.sum(1)) == {round(weight * size)}  # as many in every epoch
        for count in (3, 7, 20):
            meant = count * round(weight * size) / size
            for window in (share[:count], share[-count:]):
                assert set(window.sum(0)) <= {math.floor(meant), math.ceil(meant)}
    assert mixture.pairs == epochs[0].sum()


@pytest.mark.parametrize("every", [2, 3, 5, 10])
def test_after_as_many_epochs_as_a_weight_has_parts_each_pair_was_seen_once(every: int) -> None:
    size = 30
    sampler = sampler_of(pairs_of(7 + size), mixture=Mixture((7, size), (1, 1 / every)))
    epochs = seen(sampler, 3 * every)
    for start in (0, 1, every):
        assert (epochs[start : start + every, 7:].sum(0) == 1).all()
    assert (epochs[:, :7] == 1).all()


@pytest.mark.parametrize("seed", range(23))
def test_every_epoch_has_the_same_steps_at_nearly_the_same_cost_and_within_the_budget(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 199, random.integers(2, 5))
    weights = (1, *random.choice([0.001, 0.1, 1 / 3, 0.5, 0.97, 1, 1.5, 3, 7.3], len(sizes) - 1))
    pairs = pairs_of(int(sizes.sum()), longest=int(random.integers(3, 43)))
    budget = pairs.longest + int(random.integers(0, 3)) * int(random.integers(0, 99))
    mixture = Mixture(sizes.tolist(), weights)
    sampler = sampler_of(pairs, budget, mixture=mixture, seed=seed)
    average, totals = mixture.total(sampler.cost), []
    for epoch in range(11):
        steps = [rows for (rows,) in epoch_of(sampler, epoch)]
        assert len(steps) == sampler.steps == len(sampler)
        assert all(rows and sampler.cost[rows].sum() <= budget for rows in steps)
        totals.append(int(sampler.cost[list(chain(*steps))].sum()))
    assert max(totals) <= mixture.most(sampler.cost) < average + len(sizes) * pairs.longest + 1
    assert min(totals) > average - len(sizes) * pairs.longest


def test_an_epoch_of_a_part_has_the_lengths_of_the_whole() -> None:
    pairs = pairs_of(1009, longest=97)
    sampler = sampler_of(pairs, mixture=Mixture((2, 1007), (1, 0.1)))
    whole = np.quantile(sampler.cost[2:], [0.1, 0.5, 0.9])
    for epoch in range(3):
        drawn = [row for row in chain(*chain(*epoch_of(sampler, epoch))) if row >= 2]
        np.testing.assert_allclose(np.quantile(sampler.cost[drawn], [0.1, 0.5, 0.9]), whole, atol=2)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    sampler = mixed(seed=5)
    first, second = epoch_of(sampler, 0), epoch_of(sampler, 1)
    assert epoch_of(sampler, 0) == first != second == epoch_of(mixed(seed=5), 1)
    other = epoch_of(mixed(seed=6), 0)
    assert sorted(chain(*chain(*other))) != sorted(chain(*chain(*first)))  # other pairs, not in another order alone


def test_replicas_share_the_steps_of_one() -> None:
    for epoch in range(3):
        whole = epoch_of(mixed(), epoch)
        parts = zip(*(epoch_of(mixed(replica=Replica(3, index)), epoch) for index in range(3)), strict=True)
        assert [sorted(chain(*chain(*step))) for step in parts] == [sorted(chain(*step)) for step in whole]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_in_any_epoch(workers: int) -> None:
    whole = loader_of(PAIRS, mixture=Mixture(SIZES, WEIGHTS))
    resumed = loader_of(PAIRS, mixture=Mixture(SIZES, WEIGHTS), workers=workers)
    for epoch in (0, 4):
        whole.token_sampler.set_epoch(epoch)
        undisturbed = indices(whole)
        resumed.load_state_dict({"epoch": epoch, "steps": 7})
        assert indices(resumed) == undisturbed[7:]


def test_what_a_step_holds_is_true_on_average_over_the_epochs() -> None:
    step = StepSize.of(PAIRS, 211, mixture=Mixture(SIZES, WEIGHTS))
    sampler = mixed()
    rows = [row for epoch in range(210) for row in chain(*chain(*epoch_of(sampler, epoch)))]
    assert step.steps == sampler.steps
    steps = 210 * sampler.steps
    assert step.source_tokens == pytest.approx(sampler.source_lengths[rows].sum() / steps, rel=1e-3)
    assert step.target_tokens == pytest.approx(sampler.target_lengths[rows].sum() / steps, rel=1e-3)


def test_a_small_mixture_has_twenty_steps() -> None:
    mixture = Mixture((11, 601), (1, 0.2))
    lowered = StepSize.of(pairs_of(612), 100_003, fits_corpus=True, mixture=mixture)
    assert lowered.tokens_per_batch < 100_003
    assert sampler_of(pairs_of(612), lowered.tokens_per_batch, mixture=mixture).steps == lowered.steps >= 20


def test_padding_efficiency_is_of_what_an_epoch_holds() -> None:
    one = sampler_of(pairs_of(1), mixture=Mixture((1,), (1,)))
    twice = sampler_of(EncodedPairs(PAIRS.source, PAIRS.target), mixture=Mixture(SIZES, (1, 2, 2, 2)))
    assert one.padding_efficiency() == 1
    assert 0.5 < twice.padding_efficiency() <= 1


def test_a_corpus_alone_has_the_batches_that_it_always_had() -> None:
    """The hashes are of the batches of before there were mixtures."""
    pairs = pairs_of(509)
    for settings, expected in (
        ({}, "98ee5cf2cdce2e59"),
        ({"seed": 3, "replica": Replica(2, 1), "accumulation": 2}, "923c973efd0a6780"),
        ({"shuffle": False}, "c748cf071074a58e"),
    ):
        epochs = [epoch_of(sampler_of(pairs, **settings), epoch) for epoch in range(3)]
        assert hashlib.sha256(json.dumps(epochs).encode()).hexdigest()[:16] == expected
    assert (StepSize.of(pairs, 211).source_tokens, StepSize.of(pairs, 211).enough) == (176.16216216216216, 247)
    assert StepSize.of(pairs, 100_003, fits_corpus=True).tokens_per_batch == 387


MORE: Pairs = [(f"a {a} met the {b}", f"{a} traf {b}") for a, b in (("dog", "cat"), ("girl", "boy"), ("boy", "horse"))]


def prepared(text: ParallelText, folder: Path, mixture: dict[str, ParallelText] | None = None, **more: Any) -> Corpus:
    settings = {"vocab_size": 47, "character_coverage": 1.0, "tokenizer_sample": 1000, **more}
    return prepare(text, folder=folder, mixture=mixture, cleaning=Cleaning(max_length=9), workers=0, **settings)


def test_the_rules_hold_for_each_corpus_and_are_counted_for_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    near = ("the dog: saw a house.", "x y z")
    dirt = [HELD_OUT[0], ("", "leer"), MORE[1], TRAIN[0], ("a b c d e f g h i j", "a")]
    more = Lines([*MORE, *dirt, near], dev=[MORE[0]])  # whose dev nobody asks for
    found = prepared(Lines([*TRAIN, TRAIN[1]]), tmp_path, {"data.mixture.more": more}, vocab_size=67)
    kept = [*MORE, TRAIN[0], near]
    assert decoded(found, "train") == [*TRAIN, *kept]
    main, other = (found.statistics["corpora"][key] for key in ("data.corpus", "data.mixture.more"))
    assert (main["pairs_read"], main["kept"]) == (21, 20)
    assert (other["pairs_read"], other["kept"], other["near_held_out"]) == (9, 5, 1)
    assert main["removed"] == {"empty": 0, "held_out": 0, "duplicate": 1, "too_long": 0, "ratio": 0}
    assert other["removed"] == {"empty": 1, "held_out": 1, "duplicate": 1, "too_long": 1, "ratio": 0}
    assert found.statistics["removed"] == {"empty": 1, "held_out": 1, "duplicate": 2, "too_long": 1, "ratio": 0}
    assert other["tokens"]["target"] == sum(found.pairs("train").target.lengths[20:])
    assert found.statistics["splits"] == {"train": 25, "dev": 4}
    assert "cleaning: data.corpus: 21 pairs read, 20 kept, removed: 1 duplicate" in caplog.messages
    assert any(line.startswith("cleaning: data.mixture.more: 9 pairs read, 5 kept") for line in caplog.messages)
    assert found.mixture({"data.mixture.more": 0.4, "data.corpus": 1}).counts == [20, 2]


def test_the_vocabulary_is_learnt_from_a_sample_of_all(tmp_path: Path) -> None:
    more = Lines([("xyz quv", "quv"), *MORE])
    alone, both = prepared(Lines(), tmp_path), prepared(Lines(), tmp_path, {"data.mixture.more": more})
    assert [UNK in corpus.vocabularies.source.encode(["xyz quv"])[0] for corpus in (alone, both)] == [True, False]
    building = Builder({MAIN: Lines(), "data.mixture.more": more}, tmp_path, cleaning=Cleaning(), workers=0)
    verdicts = {MAIN: np.full(20, KEPT, np.uint8), "data.mixture.more": np.array([EMPTY, *[KEPT] * 3], np.uint8)}
    assert list(building.sample(verdicts, ["target"], pairs=99)) == [target for _, target in TRAIN + MORE]
    few = list(building.sample(verdicts, ["source"], pairs=17))
    assert len(few) == len(set(few)) == 17
    assert set(few) < {source for source, _ in TRAIN + MORE}
    assert set(few) & {source for source, _ in MORE}


class Symbols(Lines):
    """A parallel text whose target side is symbols."""

    def symbols(self) -> list[str]:
        return sorted({symbol for _, target in self.by_split["train"] for symbol in target.split()})


def test_symbols_of_every_corpus_are_single_pieces(tmp_path: Path) -> None:
    one, other = (Symbols([(f"the {noun}", f"(S XX {symbol} )S") for noun in NOUNS]) for symbol in ("(NP", "(VP"))
    found = prepared(one, tmp_path, {"data.mixture.more": other}, vocab_size=61)
    assert [len(ids) for ids in found.vocabularies.target.encode(["(NP", "(VP", "(S XX )S"])] == [1, 1, 3]


def test_a_corpus_of_a_mixture_is_known_by_its_text_and_name(tmp_path: Path) -> None:
    more, other = Lines(MORE), Lines(MORE[:2])
    texts: list[dict[str, ParallelText]] = [{}, {"data.mixture.a": more}, {"data.mixture.b": more}]
    texts += [{"data.mixture.a": other}, {"data.mixture.a": more, "data.mixture.b": other}]
    assert len({prepared(Lines(), tmp_path, mixture).path for mixture in texts}) == 5
    reads = more.reads
    prepared(Lines(), tmp_path, {"data.mixture.a": more})
    assert more.reads == reads


def test_nothing_left_of_a_corpus_is_said_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No training pair is left of 1, .*check data\.mixture\.more\."):
        prepared(Lines(), tmp_path, {"data.mixture.more": Lines([("", "leer")])})


def test_the_main_corpus_again_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    for name, lines in (("a", "one\ntwo\n"), ("b", "eins\nzwei\n"), ("again", "one\ntwo\n")):
        (tmp_path / name).write_text(lines)
    main = TextFiles(train={"source": tmp_path / "a", "target": tmp_path / "b"}, dev={"source": tmp_path / "b"})
    main.given["dev"] = {"source": tmp_path / "b", "target": tmp_path / "a"}
    again = TextFiles(train={"source": tmp_path / "again", "target": tmp_path / "b"})
    with pytest.raises(ValueError, match=r"^data\.mixture\.x is data\.corpus again, .*; leave it out, or name other"):
        prepared(main, tmp_path / "prepared", {"data.mixture.x": again})
    (tmp_path / "again").unlink()
    with pytest.raises(ValueError, match=r"^data\.mixture\.x: data\.train\.source=.*again is not a file"):
        prepared(main, tmp_path / "prepared", {"data.mixture.x": again})


def test_a_corpus_alone_is_prepared_as_it_always_was(tmp_path: Path) -> None:
    """Name, files, statistics and hash are those of before there were mixtures."""
    for split, pairs in (("train", [*TRAIN, *TRAIN[:2], ("", "x")]), ("dev", TRAIN[:1])):
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    sides = {split: {side: tmp_path / f"{split}.{side}" for side in ("source", "target")} for split in ("train", "dev")}
    settings = {"vocab_size": 47, "character_coverage": 1.0, "tokenizer_sample": 1000}
    found = prepare(TextFiles(**sides), folder=tmp_path / "all", cleaning=Cleaning(), workers=0, **settings)
    assert found.path.name == "54dd0ef9bcfd2156"
    names = [f"{split}.{side}" for split in ("dev", "train") for side in ("source", "target")]
    arrays = [f"{name}.{part}.npy" for name in names for part in ("offsets", "tokens")]
    others = ["dev.source.txt", "dev.target.txt", "near_held_out.tsv", "statistics.json", "tokenizer.model"]
    assert sorted(file.name for file in found.path.iterdir()) == sorted([*arrays, *others])
    content = b"".join((found.path / name).read_bytes() for name in sorted(arrays))
    assert hashlib.sha256(content).hexdigest()[:16] == "f8608f682b827cbd"
    statistics = {key: value for key, value in found.statistics.items() if key not in ("seconds", "settings")}
    assert list(statistics.items()) == [
        ("pairs_read", 23),
        ("removed", {"empty": 1, "held_out": 2, "duplicate": 1, "too_long": 0, "ratio": 0}),
        ("kept", 19),
        ("near_held_out", 0),
        ("tokens", {"source": 95, "target": 57}),
        ("vocab_size", 47),
        ("splits", {"train": 19, "dev": 1}),
    ]
    assert list(found.statistics["settings"]) == [
        *("text", "cleaning", "vocab_size", "character_coverage", "tokenizer_sample")
    ]
