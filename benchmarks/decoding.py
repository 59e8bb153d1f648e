"""Speed of decoding Multi30k's test set on a CPU, greedy and beam 4: our search, and CTranslate2 on the same model.

    python benchmarks/decoding.py CHECKPOINT corpora/multi30k

All ways have the same threads and batches, and take turns. Lengths decide the speed, so the checkpoint must be of a
model that has learnt when to stop, such as one of `python src/run.py experiment=multi30k_tiny_ende`.
"""

import argparse
import statistics
import time
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from aiayn.checkpoints import checkpoint
from aiayn.data.corpora.multi30k import multi30k
from aiayn.evaluation.metric import counted
from aiayn.evaluation.metrics.bleu import Bleu
from aiayn.inference import beam_search, ctranslate2_decoder, export
from aiayn.inference.translation import Decode

SEARCHES = {"greedy": 1, "beam 4": 4}


def exported(loaded: checkpoint.Checkpoint, quantization: str | None) -> ctranslate2_decoder.Exported:
    """The model in CTranslate2, which keeps it in memory."""
    with TemporaryDirectory() as folder:
        export.write_ctranslate2(loaded, Path(folder), quantization=quantization)
        return ctranslate2_decoder.load(Path(folder))


def main() -> None:
    """Decode the test set by every way, in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="of any model and vocabulary, or a run's folder")
    parser.add_argument("data", type=Path, help="folder of Multi30k")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    loaded = checkpoint.read(arguments.checkpoint)
    text = multi30k(path=arguments.data, source_language="en", target_language="de")
    source_text, references = map(list, zip(*text.pairs("test"), strict=True))
    sources = loaded.vocabularies.source.encode(source_text)
    decoders = {
        "aiayn": partial(beam_search.decode, loaded.model()),
        "CTranslate2 float32": partial(ctranslate2_decoder.decode, exported(loaded, None)),
        "CTranslate2 int8": partial(ctranslate2_decoder.decode, exported(loaded, "int8")),
    }
    ways: dict[str, Decode] = {
        f"{search}, {name}": partial(decode, beam=SEARCHES[search])
        for search, (name, decode) in product(SEARCHES, decoders.items())
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    targets = {}
    for name in [*ways] * arguments.rounds:
        start = time.perf_counter()
        found = ways[name](sources, n_best=1, progress=lambda sentences: None)
        seconds[name].append(time.perf_counter() - start)
        targets[name] = [hypotheses[0].tokens for hypotheses in found]

    table = Table("", "sentences/s", "lowest", "highest", "tokens/sentence", "BLEU", title=f"{len(sources)} sentences")
    for name, times in seconds.items():
        rates = [len(sources) / second for second in times]
        tokens = statistics.mean(len(target) + 1 for target in targets[name])
        bleu, _ = counted(Bleu(), loaded.vocabularies.target.decode(targets[name]), [references], None)
        rounded = [f"{rate:.0f}" for rate in (statistics.median(rates), min(rates), max(rates))]
        table.add_row(name, *rounded, f"{tokens:.1f}", f"{bleu.value:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
