"""Speed, memory and disk of preparing a corpus, and what that means for WMT14 (4.5 and 36 million pairs).

    python benchmarks/preparing.py [--pairs 2000000] [--workers 2] [--vocab-size 32000] [--folder /tmp/...]

The text is generated: made-up words drawn by Zipf's law, as long as the words and sentences of news, with a share of
repeated, empty, over-long and ill-matched pairs. Peak memory is the resident set of the one process there is.
"""

import argparse
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aiayn.data import builder, corpus
from aiayn.data.cleaning import KEPT, Cleaning
from aiayn.data.corpora.text import TextFiles
from aiayn.data.tokenizer import Tokenizer, Vocabularies

TYPES = 400_000  # different words in a language
WORDS = 24  # mean words a sentence; news has 22 to 26
SAMPLE = 5_000_000  # sentences for the tokenizer, the project's default
SIZES = {"WMT14 en-de": 4_500_000, "WMT14 en-fr": 36_000_000}
CORES = (2, 16)
ARRAYS = 30  # bytes held for a pair while the tokenizer learns (verdict, marks, rows) or encodes (lengths, offsets)
TURN = str.maketrans("aeioubdfgk", "eaoiudbgfk")  # the source language's letters to the target language's


def lexicon(rng: np.random.Generator, syllables: list[str]) -> np.ndarray:
    """Made-up words, the frequent ones short: one to six syllables."""
    counts = np.clip(1 + np.log10(1 + np.arange(TYPES)) * 0.6 + rng.normal(0, 0.7, TYPES), 1, 6).astype(int)
    parts = rng.choice(syllables, (TYPES, 6))
    return np.array(["".join(row[:count]) for row, count in zip(parts, counts, strict=True)], dtype=object)


def generate(folder: Path, pairs: int) -> None:
    """Write train, dev and test; 4 % of train's pairs repeat another, and 1 % break one of the other rules."""
    rng = np.random.default_rng(1)
    syllables = [onset + nucleus + coda for onset in "bdfgklmnprstv" for nucleus in "aeiou" for coda in ("", *"nrst")]
    words = lexicon(rng, syllables), lexicon(rng, [syllable.translate(TURN) for syllable in syllables])
    frequency = 1 / (2.7 + np.arange(TYPES))  # Zipf and Mandelbrot
    cumulative = np.cumsum(frequency / frequency.sum())
    for split, count in (("train", pairs), ("dev", 3000), ("test", 3000)):
        with (folder / f"{split}.source").open("w") as source, (folder / f"{split}.target").open("w") as target:
            for start in range(0, count, 10_000):
                rows = list(sentences(rng, words, cumulative, pairs=min(10_000, count - start)))
                if split == "train":
                    spoil(rng, rows)
                source.writelines(f"{pair[0]}\n" for pair in rows)
                target.writelines(f"{pair[1]}\n" for pair in rows)


def sentences(
    rng: np.random.Generator, words: tuple[np.ndarray, np.ndarray], cumulative: np.ndarray, *, pairs: int
) -> Iterator[tuple[str, str]]:
    """Pairs of sentences, the target about as long as the source."""
    lengths = np.clip(rng.lognormal(np.log(WORDS) - 0.18, 0.6, pairs), 1, 120).astype(int)
    targets = np.maximum(1, (lengths * rng.normal(1.0, 0.1, pairs)).astype(int))
    ranks = np.searchsorted(cumulative, rng.random(int(lengths.sum() + targets.sum()))).clip(max=TYPES - 1)
    begin = 0
    for length, other in zip(lengths.tolist(), targets.tolist(), strict=True):
        middle, end = begin + length, begin + length + other
        yield " ".join(words[0][ranks[begin:middle]]).capitalize() + " .", " ".join(words[1][ranks[middle:end]]) + " ."
        begin = end


def spoil(rng: np.random.Generator, rows: list[tuple[str, str]]) -> None:
    """Break every rule of cleaning in a few places."""
    for row in rng.integers(len(rows), size=len(rows) * 4 // 100).tolist():
        rows[row] = rows[int(rng.integers(len(rows)))]
    for row in rng.integers(len(rows), size=len(rows) // 400).tolist():
        source, target = rows[row]
        rows[row] = [(source, " "), ("", target), (source * 20, target * 20), (source * 4, target)][row % 4]


class Free:
    """A tokenizer whose work costs nothing: what is left is the part of encoding that holds Python's lock."""

    def __init__(self, tokenizer: Tokenizer, text: TextFiles) -> None:
        self.vocab_size = tokenizer.vocab_size
        lines = [source for source, _ in text.pairs("dev")] * 2
        self.buffers = [array.tobytes() for array in tokenizer.encode(lines)]

    def encode(self, lines: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(buffer, np.int32) for buffer in self.buffers[: len(lines)]]


class Stages(logging.Handler):
    """Notes memory and processor time of each stage as it logs its end (the peak can be reset on Linux only)."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, float] = {}  # MiB
        self.peak: dict[str, float] = {}  # MiB
        self.processor: dict[str, float] = {}  # seconds
        self.start()

    def start(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, from what is in use
        self.used, self.clock = memory("VmRSS"), time.process_time()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "%s: %.1f s":  # the line at a stage's end, not one of those on the way
            assert isinstance(record.args, tuple)
            stage = str(record.args[0])
            self.before[stage], self.peak[stage] = self.used, memory("VmHWM")
            self.processor[stage] = time.process_time() - self.clock
            self.start()


def memory(field: str) -> float:
    """A field of /proc/self/status, in MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument(
        "--folder", type=Path, help="where the text and the corpus go for the time; needs 1.2 KB a pair"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder), pairs=options.pairs, workers=options.workers, vocab_size=options.vocab_size)


def measure(folder: Path, *, pairs: int, workers: int, vocab_size: int) -> None:
    """Generate, prepare, and print what it took."""
    generator = multiprocessing.get_context("spawn").Process(target=generate, args=(folder, pairs))
    generator.start()
    generator.join()  # in a process of its own, so that its memory is not counted
    files = {split: {side: folder / f"{split}.{side}" for side in builder.SIDES} for split in ("train", "dev", "test")}
    text = TextFiles(train=files["train"], dev=files["dev"], test=files["test"])
    stages = Stages()
    logging.getLogger("aiayn.data.builder").addHandler(stages)
    logging.getLogger("aiayn.data.builder").setLevel(logging.INFO)
    prepared = corpus.prepare(
        text,
        folder=folder / "prepared",
        vocab_size=vocab_size,
        character_coverage=1.0,
        tokenizer_sample=SAMPLE,
        cleaning=Cleaning(),
        workers=workers,
    )
    statistics, seconds = prepared.statistics, prepared.statistics["seconds"]
    raw = sum(file.stat().st_size for side in files.values() for file in side.values())
    stored = sum(file.stat().st_size for file in prepared.path.iterdir()) / statistics["kept"]
    print(f"{pairs} pairs, {raw / (1 << 20):.0f} MiB of text, {workers} workers on {os.cpu_count()} cores")
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    print(f"kept {statistics['kept']}, removed {statistics['removed']}, tokens {statistics['tokens']}")
    for stage, taken in seconds.items():
        print(
            f"{stage:10s}{taken:8.1f} s {pairs / taken:9.0f} pairs/s {stages.processor[stage]:8.1f} s of processor time"
            f"   memory {stages.before[stage]:5.0f} MiB before, {stages.peak[stage]:5.0f} MiB at most"
        )
    print(f"{'in all':10s}{sum(seconds.values()):8.1f} s {pairs / sum(seconds.values()):9.0f} pairs/s")
    print(f"on disk: {stored:.0f} bytes a pair")

    started = time.process_time()
    building = builder.Builder({"text": text}, folder, cleaning=Cleaning(max_length=None, max_ratio=None), workers=0)
    held_out = {split: tuple(zip(*text.pairs(split), strict=True)) for split in ("dev", "test")}
    free = Vocabularies.joint(Free(prepared.vocabularies.source, text))  # type: ignore[arg-type]
    building.encode(free, {"text": np.full(pairs, KEPT, np.uint8)}, held_out)  # type: ignore[arg-type]
    serial = (time.process_time() - started) / pairs
    parallel = stages.processor["encode"] / pairs - serial
    started = time.process_time()
    assert not list(building.selected("text", np.full(pairs, False), "read"))
    read = (time.process_time() - started) / pairs
    extrapolate(stages, pairs=pairs, read=read, serial=serial, parallel=parallel, stored=stored)


def extrapolate(stages: Stages, *, pairs: int, read: float, serial: float, parallel: float, stored: float) -> None:
    """Print time, memory and disk for WMT14.

    Time is processor time, since others may use this machine: reading and judging grow with the pairs; learning the
    tokenizer grows up to its sample; a pair's encoding takes `serial + parallel / cores` seconds. Judging's memory
    grows with the pairs and the tokenizer's with its sample: that is too much, for part of it is constant. Encoding's
    is reckoned, not measured: it fits into what the tokenizer has used and not given back.
    """
    print(f"encoding a pair: {serial * 1e6:.1f} us that hold Python's lock, {parallel * 1e6:.1f} us that do not")
    judge = stages.processor["judge"] / pairs
    learn = (stages.processor["tokenizer"] - read * pairs) / min(SAMPLE, 2 * pairs)
    for name, size in SIZES.items():
        learnt = min(SAMPLE, 2 * size)
        judging = (stages.peak["judge"] - stages.before["judge"]) / pairs * size
        learning = (stages.peak["tokenizer"] - stages.before["tokenizer"]) / min(SAMPLE, 2 * pairs) * learnt
        most = stages.before["judge"] + max(judging, learning + ARRAYS * size / (1 << 20))
        hours = {
            cores: ((judge + read) * size + learn * learnt + size * (serial + parallel / cores)) / 3600
            for cores in CORES
        }
        print(
            f"{name}, {size / 1e6:.1f} million pairs: {hours[2]:.2f} h on 2 cores, {hours[16]:.2f} h on 16;"
            f" {most / 1024:.1f} GiB of memory, {stored * size / 1e9:.1f} GB on disk"
        )


if __name__ == "__main__":
    main()
