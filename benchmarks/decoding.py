"""Speed of decoding Multi30k's test set, in sentences per second: beam 4 and greedy, float32, a few threads.

    python benchmarks/decoding.py CHECKPOINT corpora/multi30k

Lengths decide the speed, so the checkpoint must be of a model that has learnt when to stop, such as one of
`python src/run.py model=small data=multi30k_ende`.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from aiayn.data.parallel_text import multi30k
from aiayn.data.tokenizer import EOS, PAD
from aiayn.evaluation.bleu import sacre_bleu
from aiayn.inference import checkpoint
from aiayn.inference.beam_search import decode, search
from aiayn.model.transformer import Transformer


def decode_by_count(
    model: Transformer, sources: list[np.ndarray], *, beam: int, sentences_per_batch: int
) -> list[list[int]]:
    """Like `decode`, with a fixed number of sentences in a batch, as other toolkits are measured."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    targets: list[list[int]] = [[]] * len(sources)
    for start in range(0, len(order), sentences_per_batch):
        indices = order[start : start + sentences_per_batch]
        rows = [torch.tensor([*sources[index].tolist(), EOS]) for index in indices]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        found = search(model, source.to(model.embedding.weight.device), beam=beam)
        for index, hypotheses in zip(indices, found, strict=True):
            targets[index] = hypotheses[0].tokens
    return targets


def main() -> None:
    """Decode the test set by every way, in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="of any model and vocabulary")
    parser.add_argument("data", type=Path, help="folder of Multi30k")
    parser.add_argument("--batch", type=int, default=64, help="sentences in a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    loaded = checkpoint.read(arguments.checkpoint)
    model = loaded.model().to(arguments.device)
    text = multi30k(path=arguments.data, source_language="en", target_language="de")
    source_text, references = map(list, zip(*text.pairs("test"), strict=True))
    sources = loaded.tokenizer.encode(source_text)
    by_count = partial(decode_by_count, sentences_per_batch=arguments.batch)
    ways = {
        f"beam 4, {arguments.batch} sentences": partial(by_count, beam=4),
        f"greedy, {arguments.batch} sentences": partial(by_count, beam=1),
        "beam 4, decode's default": partial(decode, beam=4),
        "greedy, decode's default": partial(decode, beam=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    targets = {}
    for name in [*ways] * arguments.rounds:
        start = time.perf_counter()
        targets[name] = ways[name](model, sources)
        seconds[name].append(time.perf_counter() - start)

    table = Table("", "sentences/s", "lowest", "highest", "tokens/sentence", "BLEU", title=f"{len(sources)} sentences")
    for name, times in seconds.items():
        rates = [len(sources) / second for second in times]
        tokens = statistics.mean(len(target) + 1 for target in targets[name])
        bleu = sacre_bleu(loaded.tokenizer.decode(targets[name]), [references])
        figures = [statistics.median(rates), min(rates), max(rates), tokens, bleu.value]
        table.add_row(name, *(f"{figure:.1f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
