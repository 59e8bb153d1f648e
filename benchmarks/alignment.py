"""Word alignments from attention: recall of silver links, by the rule that says which attention is looked at.

    python benchmarks/alignment.py CHECKPOINT corpora/multi30k --test-set test_2018_flickr

The model translates the test set, with beam 4, and its translations are aligned. A silver link joins two words that
each occur once in their sentence, and whose Dice coefficient, over the sentences of train that they occur once in, is
above 0.6. Nobody has checked these links, and many words have none: so recall alone is shown, and only differences mean
something.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from aiayn.analysis.alignment import TOKENS, Link, links, shares
from aiayn.analysis.weights import weights
from aiayn.checkpoints import checkpoint
from aiayn.data.corpora.multi30k import multi30k
from aiayn.inference.beam_search import decode
from aiayn.inference.scoring import batches

DICE = 0.6
Pair = tuple[str, str]


def single(sentence: str) -> dict[str, int]:
    """The words that occur once in a sentence, and where; words are what white space divides."""
    words = sentence.split()
    return {word: place for place, word in enumerate(words) if words.count(word) == 1}


def silver_links(train: Sequence[Pair], test: Sequence[Pair]) -> list[set[Link]]:
    """The silver links of each pair of `test`."""
    wanted = [set(product(single(source), single(target))) for source, target in test]
    together, apart = Counter[tuple[str, str]](), (Counter[str](), Counter[str]())
    asked = set().union(*wanted)
    for source, target in train:
        words = set(single(source)), set(single(target))
        for counter, side in zip(apart, words, strict=True):
            counter.update(side)
        together.update(asked.intersection(product(*words)))
    joined = {pair for pair in asked if 2 * together[pair] > DICE * (apart[0][pair[0]] + apart[1][pair[1]])}
    return [
        {(single(source)[a], single(target)[b]) for a, b in joined & pairs}
        for (source, target), pairs in zip(test, wanted, strict=True)
    ]


def scores(cross: Tensor, real: Tensor) -> dict[str, Tensor]:
    """How much each target token is about each source position by each rule, `(batch, target, source)`.

    Args:
        cross: Of a pass over BOS, the target and EOS, `(layers, batch, heads, target + 1, source)`.
        real: False where the target is padded, `(batch, target)`.
    """
    heads = cross.mean(2)
    predicts, reads = heads[:, :, :-1], heads[:, :, 1:]  # the rows that predict a token, and those that read it
    return {
        "shares, all layers (aiayn)": shares(cross[:, :, :, :-1], real),
        "all layers": predicts.mean(0),
        "penultimate layer (Garg et al. 2019)": predicts[-2],
        **{f"layer {n}, row that reads (Chen et al. 2020)": layer for n, layer in enumerate(reads, start=1)},
    }


@torch.inference_mode()
def main() -> None:
    """Align the test set by every rule, and print how many of the silver links each finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a file, or a run's folder")
    parser.add_argument("data", type=Path, help="folder of Multi30k")
    parser.add_argument("--test-set", default="test_2016_flickr")
    arguments = parser.parse_args()

    loaded = checkpoint.read(checkpoint.located(arguments.checkpoint))
    model, vocabularies = loaded.model(), loaded.vocabularies
    languages = {f"{side}_language": loaded.config["data"][f"{side}_language"] for side in ("source", "target")}
    text = multi30k(path=arguments.data, test_set=arguments.test_set, **languages)
    test = [source for source, _ in text.pairs("test")]
    sources = vocabularies.source.encode(test)
    targets = [hypotheses[0].tokens for hypotheses in decode(model, sources)]
    silver = silver_links(list(text.pairs("train")), list(zip(test, vocabularies.target.decode(targets), strict=True)))
    found = Counter[str]()
    for rows, batch in batches(model, sources, list(map(np.array, targets)), tokens_per_batch=TOKENS):
        whole = replace(batch, target=functional.pad(batch.target, (0, 1)))  # a query for EOS too
        cross = weights(model, whole).cross
        for name, score in scores(cross, real=batch.target[:, 1:] != model.pad_id).items():
            for row, attended in zip(rows, score.argmax(-1).tolist(), strict=True):
                found[name] += len(silver[row].intersection(links(vocabularies, test[row], targets[row], attended)))
    total = sum(map(len, silver))
    table = Table("rule", f"recall of {total:,} silver links, %")
    for name, count in found.items():
        table.add_row(name, f"{100 * count / total:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
