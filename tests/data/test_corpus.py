import fcntl
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from aiayn import progress
from aiayn.data import builder
from aiayn.data.cleaning import Cleaning
from aiayn.data.corpora.multi30k import multi30k
from aiayn.data.corpus import Corpus, prepare
from aiayn.data.parallel_text import ParallelText
from aiayn.data.ragged import Ragged, RaggedWriter
from aiayn.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, Vocabularies

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
Pairs = list[tuple[str, str]]
NOUNS = ["dog", "cat", "girl", "boy", "horse"]
TRAIN: Pairs = [(f"the {a} saw a {b}", f"{a} sah {b}") for a in NOUNS for b in NOUNS if a != b]
HELD_OUT: Pairs = [("the dog saw a house", "dog sah haus"), ("", ""), ("a\x85b \xa0", " b"), ("", "")]


class Lines:
    """A parallel text in memory that counts how often train is read."""

    def __init__(self, train: Pairs = TRAIN, **held_out: Pairs) -> None:
        self.by_split: dict[str, Pairs] = {"train": train, "dev": HELD_OUT, **held_out}
        self.reads = 0

    def splits(self) -> list[str]:
        return list(self.by_split)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        self.reads += split == "train"
        return iter(self.by_split[split])

    def fingerprint(self) -> dict[str, Any]:
        return self.by_split


def prepared(
    text: ParallelText,
    folder: Path,
    *,
    vocab_size: int = 47,
    sample: int = 1000,
    workers: int = 0,
    byte_fallback: bool = False,
    shared_vocabulary: bool = True,
    vocabularies: Vocabularies | None = None,
    **limits: Any,
) -> Corpus:
    return prepare(
        text,
        folder=folder,
        vocab_size=vocab_size,
        character_coverage=1.0,
        tokenizer_sample=sample,
        cleaning=Cleaning(**limits),
        workers=workers,
        byte_fallback=byte_fallback,
        shared_vocabulary=shared_vocabulary,
        vocabularies=vocabularies,
    )


def decoded(corpus: Corpus, split: str) -> Pairs:
    pairs, vocabularies = corpus.pairs(split), corpus.vocabularies
    sides = vocabularies.source.decode(list(pairs.source)), vocabularies.target.decode(list(pairs.target))
    return list(zip(*sides, strict=True))


def test_each_rule_removes_and_counts_what_it_should(tmp_path: Path) -> None:
    dirt = [
        ("", "leer"),
        (" \u3000", "leer"),
        ("\u200b", "leer"),
        ("the dog saw a house", "anders"),
        (" anders", "dog sah haus "),
        TRAIN[3],
        (f" {TRAIN[3][0]}", TRAIN[3][1]),
        ("a b c d e f g h", "dog cat boy girl " * 8),
        ("a", "the dog saw a girl the"),
    ]
    text = Lines(TRAIN[:7] + dirt + TRAIN[7:])
    found = prepared(text, tmp_path, max_length=23, max_ratio=5)
    assert found.statistics["removed"] == {"empty": 3, "held_out": 2, "duplicate": 2, "too_long": 1, "ratio": 1}
    assert found.statistics["pairs_read"] == 29
    assert found.statistics["kept"] == 20
    assert decoded(found, "train") == TRAIN
    assert found.statistics["tokens"] == {
        side: int(getattr(found.pairs("train"), side).lengths.sum()) for side in ("source", "target")
    }


def test_pairs_that_are_the_same_to_the_model_are_the_same_to_the_rules(tmp_path: Path) -> None:
    text = Lines(
        [
            *TRAIN,
            ("the  dog\u00a0saw a\u200bhouse", "eins"),  # one of dev, by its ids
            ("zwei", "dog\x07 sah haus"),
            (TRAIN[3][0].replace(" ", "\u2003"), f"{TRAIN[3][1]}\ufeff"),
        ]
    )
    found = prepared(text, tmp_path)
    assert decoded(found, "train") == TRAIN
    assert found.statistics["removed"] == {"empty": 0, "held_out": 2, "duplicate": 1, "too_long": 0, "ratio": 0}


def test_near_duplicates_of_dev_and_test_are_kept_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    near = [("The dog saw: a HOUSE!", "eins"), ("zwei", "dog sah haus.")]
    other = [("the dog saw a house", "drei"), ("the dog saw a house 7", "vier")]
    found = prepared(Lines([*TRAIN, *near, *other]), tmp_path, vocab_size=53)
    assert (found.statistics["near_held_out"], found.statistics["removed"]["held_out"]) == (2, 1)
    assert found.statistics["kept"] == 23
    listed = found.path / "near_held_out.tsv"
    assert listed.read_text() == "The dog saw: a HOUSE!\teins\nzwei\tdog sah haus.\n"
    assert "2 of the pairs kept have a side that differs from one of dev in case and punctuation only" in caplog.text
    assert f"{listed} lists them" in caplog.text


def test_a_vocabulary_that_is_too_large_is_lowered_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = prepared(Lines(), tmp_path, vocab_size=997)
    largest = found.vocabularies.source.vocab_size
    assert f"data.vocab_size=997 is more than the text allows: it is {largest}" in caplog.text
    assert found.vocabularies.hash == prepared(Lines(), tmp_path, vocab_size=largest).vocabularies.hash
    assert prepared(Lines(), tmp_path, vocab_size=997).path == found.path  # by what was asked for


def test_each_side_may_have_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    text = Lines()
    found = prepared(text, tmp_path, vocab_size=29, shared_vocabulary=False)
    sources, targets = zip(*TRAIN, strict=True)
    alone = [Tokenizer.train(side, vocab_size=29) for side in (sources, targets)]
    assert [found.vocabularies.source.model, found.vocabularies.target.model] == [side.model for side in alone]
    assert not found.vocabularies.shared
    assert decoded(found, "train") == TRAIN
    assert [len(ids) for ids in found.pairs("dev").target] == [
        len(ids) for ids in alone[1].encode(["dog sah haus", "", "b", ""])
    ]
    assert {key: size for key, size in found.statistics.items() if "vocab" in key} == found.vocabularies.sizes
    assert Corpus.open(found.path).vocabularies.hash == found.vocabularies.hash
    assert prepared(text, tmp_path, vocab_size=29).path != found.path
    (found.path / "target_tokenizer.model").unlink()
    with pytest.raises(ValueError, match=r"not a complete corpus.*target_tokenizer\.model"):
        Corpus.open(found.path)


def test_each_side_s_vocabulary_is_lowered_or_refused_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = prepared(Lines(), tmp_path, vocab_size=997, shared_vocabulary=False, byte_fallback=True)
    for side in ("source", "target"):
        size = getattr(found.vocabularies, side).vocab_size
        assert f"data.vocab_size=997 is more than the {side} text allows: it is {size}" in caplog.text
    assert found.vocabularies.source.vocab_size > found.vocabularies.target.vocab_size > 256
    with pytest.raises(ValueError, match=r"The target side, with data\.shared_vocabulary=false: .* no room for"):
        prepared(Lines([("a", "sah bdcghilort")]), tmp_path, vocab_size=11, shared_vocabulary=False)


def test_each_side_is_compared_as_its_own_tokenizer_normalises_it(tmp_path: Path) -> None:
    def model(rule: str) -> Tokenizer:
        found = io.BytesIO()
        ids = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["one two three"]),
            model_writer=found,
            vocab_size=17,
            model_type="bpe",
            normalization_rule_name=rule,
            minloglevel=2,
            **ids,
        )
        return Tokenizer(found.getvalue())

    text = Lines([("one", "two"), ("\uff4fne", "two"), ("one", "\uff54wo")])  # wide letters, the same to NFKC alone
    plain, nfkc = model("identity"), model("nmt_nfkc")
    kept = [
        prepared(text, tmp_path, vocabularies=given).statistics["kept"]
        for given in (Vocabularies(nfkc, plain), Vocabularies(plain, nfkc), Vocabularies.joint(plain))
    ]
    assert kept == [2, 2, 3]


def test_dev_and_test_are_kept_line_for_line(tmp_path: Path) -> None:
    found = prepared(Lines(test=HELD_OUT[:2] + TRAIN[:3]), tmp_path, max_length=9)
    assert found.splits() == ["train", "dev", "test"]
    assert list(zip(*found.text("dev"), strict=True)) == HELD_OUT
    assert list(zip(*found.text("test"), strict=True)) == HELD_OUT[:2] + TRAIN[:3]
    assert found.pairs("dev").source.lengths.astype(bool).tolist() == [True, False, True, False]
    assert found.statistics["splits"] == {"train": 17, "dev": 4, "test": 5}


class Others(Lines):
    """The same description of another text."""

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return iter([("x", "y"), *super().pairs(split)])


def test_corpora_of_ones_own_are_told_apart_by_their_code_too(tmp_path: Path) -> None:
    one, other = prepared(Lines(), tmp_path), prepared(Others(), tmp_path)
    assert one.path != other.path
    assert other.text("dev")[0][0] == "x"


def test_a_corpus_without_dev_says_what_it_has(tmp_path: Path) -> None:
    text = Lines()
    del text.by_split["dev"]
    with pytest.raises(ValueError, match=r"data.dev is missing: the corpus has train\. With data=text give"):
        prepared(text, tmp_path)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_line_feed_inside_a_sentence_is_refused(tmp_path: Path, split: str) -> None:
    text = Lines(**{"train": TRAIN, "dev": HELD_OUT, split: [("one", "eins"), ("two\nthree", "zwei drei")]})
    with pytest.raises(ValueError, match=f"Lines gives a line feed inside pair 2 of {split}"):
        prepared(text, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_the_tokenizer_learns_nothing_from_dev_and_test(tmp_path: Path) -> None:
    found = prepared(Lines([*TRAIN, ("\u4e2d", "\u4e2d")], test=[("\u4e2d", "\u4e2d")]), tmp_path)
    assert found.vocabularies.source.encode(["\u4e2d"])[0][-1] == UNK


def test_the_tokenizer_learns_from_no_more_than_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def train(sentences: Iterable[str], **settings: Any) -> Tokenizer:
        seen.append(list(sentences))
        return original(seen[-1] + ["thedogsawacatgirlboyhorse"], **settings)

    original = Tokenizer.train
    monkeypatch.setattr(Tokenizer, "train", train)
    for folder in ("first", "second"):
        prepared(Lines(), tmp_path / folder, sample=14, vocab_size=29)
    assert len(seen[0]) == 14
    assert len(set(seen[0])) == 14
    assert set(seen[0]) < {sentence for pair in TRAIN for sentence in pair}
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(builder, "CHUNK", 3)
    text = Lines(TRAIN * 5 + [("dog", "hund " * 11)] + TRAIN)
    paths = [prepared(text, tmp_path / str(number), workers=number).path for number in (0, workers)]
    files = sorted(file.name for file in paths[0].iterdir() if file.name != "statistics.json")
    assert len(files) == 4 + 4 + 2 + 1 + 1  # of train, of dev, its text, the tokenizer, near duplicates
    for name in files:
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes(), name


def test_a_second_run_finds_the_corpus_without_reading_the_text(tmp_path: Path) -> None:
    text = Lines()
    first = prepared(text, tmp_path)
    second = prepared(text, tmp_path, workers=2)
    assert second.path == first.path
    assert text.reads == 3
    assert second.vocabularies.hash == first.vocabularies.hash


def test_other_text_or_settings_make_another_corpus(tmp_path: Path) -> None:
    variants = [
        prepared(Lines(), tmp_path),
        prepared(Lines(TRAIN[:13]), tmp_path),
        prepared(Lines(), tmp_path, vocab_size=43),
        prepared(Lines(), tmp_path, max_length=13),
    ]
    assert len({found.path for found in variants}) == 4


def test_bytes_to_fall_back_on_make_another_corpus_and_their_absence_the_same_as_ever(tmp_path: Path) -> None:
    text = Lines(dev=[("the \U0001f415 saw \u4e2d", "\U0001f415 sah")])
    without, with_bytes = (prepared(text, tmp_path, vocab_size=size, byte_fallback=size > 99) for size in (47, 307))
    assert decoded(with_bytes, "dev") == text.by_split["dev"]
    assert (UNK in without.pairs("dev").source.tokens, UNK in with_bytes.pairs("dev").source.tokens) == (True, False)
    # Corpora are found by these: a key for what is off would prepare every older one anew.
    assert with_bytes.statistics["settings"].keys() - without.statistics["settings"].keys() == {"byte_fallback"}


class Symbols(Lines):
    """A parallel text whose targets are symbols."""

    def symbols(self) -> list[str]:
        return ["(S", ")S", ",", "XX"]


TREES: Pairs = [(source, "(S XX , (S XX )S XX )S") for source, _ in TRAIN]


@pytest.mark.parametrize("shared", [True, False])
def test_symbols_of_a_corpus_are_pieces_of_the_target_s_vocabulary(tmp_path: Path, shared: bool) -> None:
    dev = [("the dog saw a house , XX", "(S XX )S"), ("a dog", "(S (NP XX )NP )S")]
    found = prepared(Symbols(TREES, dev=dev), tmp_path, vocab_size=29, shared_vocabulary=shared, duplicates=False)
    assert decoded(found, "train") == TREES
    assert found.pairs("train").target.lengths.tolist() == [8] * len(TREES)
    assert decoded(found, "dev")[0][1] == dev[0][1]
    assert UNK in found.pairs("dev").target[1]  # a symbol that train has not is text
    symbols = {f"\u2581{symbol}" for symbol in Symbols().symbols()}
    source, target = (set(side.vocabulary) for side in (found.vocabularies.source, found.vocabularies.target))
    assert symbols <= target
    assert bool(symbols & source) == shared
    assert Corpus.open(found.path).vocabularies.hash == found.vocabularies.hash


def test_a_corpus_without_symbols_is_prepared_as_ever(tmp_path: Path) -> None:
    """Its name is the hash of what it is made from: another would prepare every older corpus anew."""

    class Text(Lines):
        """No module of one's own tells it from others."""

    Text.__module__ = "aiayn.data.corpora.text"
    found = prepared(Text(), tmp_path)
    assert found.path.name == "bbaf7d85f478e001"
    model = (found.path / "tokenizer.model").read_bytes()
    assert model == Tokenizer.train([side for pair in TRAIN for side in pair], vocab_size=47).model
    assert not any("symbol" in key for key in found.statistics["settings"])


PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_corpus import TRAIN, Lines, prepared

class Slow(Lines):
    def pairs(self, split):
        yield from super().pairs(split)
        if split == "train":
            print("read", flush=True)
            time.sleep(0.3 if self.reads != {hangs_at} else 600)

Slow.__qualname__, Slow.__module__ = Lines.__qualname__, Lines.__module__  # whose corpus it is
print(prepared(Slow(), Path({folder!r})).path)
"""


def started(folder: Path, *, hangs_at: int | None = None) -> subprocess.Popen[str]:
    """A process of its own that prepares `TRAIN`, says when it has read it, and hangs after the read `hangs_at`."""
    program = PROGRAM.format(tests=str(Path(__file__).parent), folder=str(folder), hangs_at=hangs_at)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_two_processes_at_once_do_the_work_once_and_open_the_same_corpus(tmp_path: Path) -> None:
    processes = [started(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(map(len, outputs)) == [1, 4]  # one read train three times, the other not at all
    assert outputs[0][-1] == outputs[1][-1]
    assert decoded(Corpus.open(Path(outputs[0][-1])), "train") == TRAIN


@pytest.mark.slow
@pytest.mark.parametrize("reads", [1, 3])
def test_a_killed_build_is_built_anew(tmp_path: Path, reads: int) -> None:
    process = started(tmp_path, hangs_at=reads)
    assert process.stdout is not None
    for _ in range(reads):
        assert process.stdout.readline() == "read\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(list(tmp_path.glob("*.partial"))) == 1
    found = prepared(Lines(), tmp_path)
    assert decoded(found, "train") == TRAIN
    assert sorted(file.name for file in tmp_path.iterdir()) == [found.path.name, f"{found.path.name}.lock"]


def test_what_a_dead_builder_left_is_removed_by_the_builder_of_another_corpus_and_a_living_one_is_let_be(
    tmp_path: Path,
) -> None:
    for name in ("dead", "living"):
        (tmp_path / f"{name}.partial").mkdir()
    with (tmp_path / "living.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepared(Lines(), tmp_path)
    assert [folder.name for folder in tmp_path.glob("*.partial")] == ["living.partial"]


def left(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.suffix != ".lock"]


def test_a_vocabulary_too_small_ends_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data\.vocab_size=7 has no room for the text's characters; give at least \d+"
    ):
        prepared(Lines(), tmp_path, vocab_size=7)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("train", "counts"),
    [([], ""), ([("", "a"), HELD_OUT[0], ("b", "")], "removed: 2 empty, 1 held out"), (TRAIN, "removed: 20 too long")],
)
def test_a_training_text_that_cleaning_empties_is_refused_with_the_counts(
    tmp_path: Path, train: Pairs, counts: str
) -> None:
    with pytest.raises(ValueError, match=f"No training pair is left of {len(train)}, .*{counts}"):
        prepared(Lines(train), tmp_path, max_length=1)
    assert left(tmp_path) == []


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: RaggedWriter, sequences: Ragged) -> None:
        with open("/dev/full", "wb") as full:
            full.write(b"1")

    monkeypatch.setattr(RaggedWriter, "append", append)
    with pytest.raises(OSError, match=r"^The disk is full: .* could not be written\. Make room") as error:
        prepared(Lines(), tmp_path, workers=2)
    assert "\n" not in str(error.value)
    assert left(tmp_path) == []


def test_a_text_that_cannot_be_read_says_so_itself(tmp_path: Path) -> None:
    class Missing(Lines):
        def pairs(self, split: str) -> Iterator[tuple[str, str]]:
            raise FileNotFoundError("train.en")

    with pytest.raises(FileNotFoundError, match=r"^train\.en$"):
        prepared(Missing(), tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize("change", [-1, 1])
def test_a_text_that_changes_while_it_is_read_is_noticed(tmp_path: Path, change: int) -> None:
    class Growing(Lines):
        def pairs(self, split: str) -> Iterator[tuple[str, str]]:
            pairs = list(super().pairs(split))
            return iter(pairs if self.reads < 3 or split != "train" else [*pairs, TRAIN[0]][: len(pairs) + change])

    with pytest.raises(ValueError, match=f"changed while it was read: 20 pairs, then {20 + change}"):
        prepared(Growing(), tmp_path)


def test_a_damaged_corpus_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = prepared(Lines(), tmp_path).path
    tokens = path / "train.source.tokens.npy"
    os.truncate(tokens, tokens.stat().st_size - 1)
    with pytest.raises(ValueError, match="is not a complete corpus; delete it"):
        Corpus.open(path)
    with pytest.raises(ValueError, match="is not a complete corpus; delete it"):
        Corpus.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"sample": 1}, "data.tokenizer_sample must be at least 2"), ({"workers": -1}, "data.prepare_workers must be 0")],
)
def test_settings_that_make_no_sense_are_refused_before_any_work(
    tmp_path: Path, setting: dict[str, int], message: str
) -> None:
    text = Lines()
    with pytest.raises(ValueError, match=message):
        prepared(text, tmp_path, **setting)
    assert text.reads == 0


def test_progress_is_lines_without_a_terminal_and_a_bar_on_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "SECONDS", -1)
    monkeypatch.setattr(builder, "CHUNK", 13)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with caplog.at_level(logging.INFO):
        prepared(Lines(), tmp_path / "lines")
    assert "encode: pairs: 13 of 20" in caplog.text
    assert "encode" not in capsys.readouterr().err
    caplog.clear()
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    with caplog.at_level(logging.INFO):
        prepared(Lines(), tmp_path / "bar")
    assert "encode: pairs: 13 of 20" not in caplog.text
    assert "encode" in capsys.readouterr().err


def test_statistics_are_plain_data_with_the_settings(tmp_path: Path) -> None:
    found = prepared(Lines(), tmp_path)
    assert json.loads((found.path / "statistics.json").read_text()) == found.statistics
    assert found.statistics["settings"]["cleaning"]["max_length"] == 250
    assert set(found.statistics["seconds"]) == {"judge", "tokenizer", "encode"}


@pytest.mark.skipif(not (SHARED / "multi30k").is_dir(), reason="needs ../shared/data/multi30k")
def test_multi30k_loses_twelve_pairs_and_keeps_dev_and_test_whole(tmp_path: Path) -> None:
    text = multi30k(path=SHARED / "multi30k", source_language="en", target_language="de")
    found = prepared(text, tmp_path, vocab_size=5000, workers=2)
    assert found.statistics["removed"] == {"empty": 0, "held_out": 8, "duplicate": 2, "too_long": 0, "ratio": 2}
    others = {"test_2017_flickr": 1000, "test_2017_mscoco": 461, "test_2018_flickr": 1071}
    assert found.statistics["splits"] == {"train": 28988, "dev": 1014, "test": 1000, **others}
    sources, targets = found.text("test")
    assert list(zip(sources, targets, strict=True)) == list(text.pairs("test"))
    again = found.vocabularies.source.decode([found.pairs("test").target[row] for row in range(50)])
    assert np.mean([a == b.strip() for a, b in zip(again, targets, strict=False)]) > 0.9
