"""Speed of decoding Multi30k's test set, in sentences per second: beam 4 and greedy, float32, a few threads.

    python benchmarks/decoding.py ../shared/data/multi30k [--checkpoint outputs/.../last.ckpt] [--device cuda]

Without a checkpoint it first trains a small model (3 + 3 layers, d_model 256, vocabulary 8,000) for a few epochs, so
that targets are as long as real ones; lengths decide the speed. `--keep` saves that model, and finds it the next time.
"""

import argparse
import logging
import statistics
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from aiayn.data.batching import BatchLoader, PairDataset, TokenBatchSampler
from aiayn.data.parallel_text import ParallelText, multi30k
from aiayn.data.ragged import encode_pairs
from aiayn.data.tokenizer import EOS, PAD, Tokenizer
from aiayn.evaluation.bleu import scores
from aiayn.inference import checkpoint
from aiayn.inference.beam_search import decode, search
from aiayn.model.attention import MultiHeadAttention
from aiayn.model.feed_forward import FeedForward
from aiayn.model.norm import PostNorm
from aiayn.model.position import SinusoidalPosition
from aiayn.model.transformer import Transformer
from aiayn.training.loss import label_smoothed_cross_entropy
from aiayn.training.schedule import learning_rate

logger = logging.getLogger(__name__)

VOCAB_SIZE, LAYERS, D_MODEL, D_FF, HEADS, DROPOUT = 8000, 3, 256, 1024, 4, 0.1
TOKENS_PER_BATCH, WARMUP_STEPS, SCALE = 4096, 300, 0.3


def build(vocab_size: int) -> Transformer:
    """The model that the toolkits were measured with."""
    return Transformer(
        vocab_size,
        layers=LAYERS,
        d_model=D_MODEL,
        dropout=DROPOUT,
        attention=partial(MultiHeadAttention, D_MODEL, HEADS, d_k=D_MODEL // HEADS, d_v=D_MODEL // HEADS),
        feed_forward=partial(FeedForward, D_MODEL, D_FF),
        norm=partial(PostNorm, D_MODEL, DROPOUT),
        position=partial(SinusoidalPosition, D_MODEL),
    )


def train(text: ParallelText, *, epochs: int, device: str) -> tuple[Transformer, Tokenizer]:
    """A plain training loop over the project's parts."""
    torch.manual_seed(1)
    sources, targets = zip(*text.pairs("train"), strict=True)
    tokenizer = Tokenizer.train([*sources, *targets], vocab_size=VOCAB_SIZE)
    pairs = encode_pairs(tokenizer, sources, targets)
    lengths = pairs.source.lengths + 1, pairs.target.lengths + 1
    sampler = TokenBatchSampler(*lengths, tokens_per_batch=TOKENS_PER_BATCH)
    model = build(tokenizer.vocab_size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in BatchLoader(PairDataset(pairs), sampler):
            step += 1
            batch = batch.to(device)
            labels = batch.target[:, 1:]
            features = model.features(batch.source, batch.target[:, :-1])[labels != PAD]
            loss, likelihood = label_smoothed_cross_entropy(
                features, model.embedding.weight, labels[labels != PAD], label_smoothing=0.1
            )
            optimizer.param_groups[0]["lr"] = learning_rate(
                step, d_model=D_MODEL, warmup_steps=WARMUP_STEPS, scale=SCALE
            )
            optimizer.zero_grad()
            (loss / batch.step_tokens).backward()
            optimizer.step()
        logger.info("epoch %d, step %d: %.2f nats a token", epoch, step, likelihood / batch.step_tokens)
    return model.eval(), tokenizer


def prepare(arguments: argparse.Namespace, text: ParallelText) -> tuple[Transformer, Tokenizer]:
    """The model to measure: of a checkpoint, kept from an earlier call, or trained now."""
    if arguments.checkpoint is not None:
        opened = checkpoint.read(arguments.checkpoint)
        return opened.model().to(arguments.device), opened.tokenizer
    if arguments.keep is not None and arguments.keep.exists():
        kept = torch.load(arguments.keep, weights_only=True, map_location=arguments.device)
        tokenizer = Tokenizer(bytes(kept["tokenizer"].tolist()))
        model = build(tokenizer.vocab_size).to(arguments.device).eval()
        model.load_state_dict(kept["weights"])
        return model, tokenizer
    model, tokenizer = train(text, epochs=arguments.epochs, device=arguments.device)
    if arguments.keep is not None:
        content = {"weights": model.state_dict(), "tokenizer": torch.tensor(list(tokenizer.model), dtype=torch.uint8)}
        torch.save(content, arguments.keep)
    return model, tokenizer


def decode_by_count(
    model: Transformer, sources: list[np.ndarray], *, beam: int, sentences_per_batch: int, device: str
) -> list[list[int]]:
    """Like `decode`, with a fixed number of sentences in a batch, as the toolkits were measured."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    targets: list[list[int]] = [[]] * len(sources)
    for start in range(0, len(order), sentences_per_batch):
        indices = order[start : start + sentences_per_batch]
        rows = [torch.tensor([*sources[index].tolist(), EOS]) for index in indices]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
        for index, hypotheses in zip(indices, search(model, source, beam=beam), strict=True):
            targets[index] = hypotheses[0].tokens
    return targets


def main() -> None:
    """Decode the test set by every way, in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Multi30k")
    parser.add_argument("--checkpoint", type=Path, help="a checkpoint of this project, of any model and vocabulary")
    parser.add_argument("--keep", type=Path, help="file that the quickly trained model is kept in")
    parser.add_argument("--epochs", type=int, default=5, help="of the quick training")
    parser.add_argument("--batch", type=int, default=64, help="sentences in a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(arguments.threads)

    text = multi30k(path=arguments.data, source_language="en", target_language="de")
    model, tokenizer = prepare(arguments, text)
    source_text, references = map(list, zip(*text.pairs("test"), strict=True))
    sources = tokenizer.encode(source_text)
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
        targets[name] = ways[name](model, sources, device=arguments.device)
        seconds[name].append(time.perf_counter() - start)

    table = Table("", "sentences/s", "lowest", "highest", "tokens/sentence", "BLEU", title=f"{len(sources)} sentences")
    for name, times in seconds.items():
        rates = [len(sources) / second for second in times]
        tokens = statistics.mean(len(target) + 1 for target in targets[name])
        bleu = scores(tokenizer.decode(targets[name]), references)["bleu"]
        figures = [statistics.median(rates), min(rates), max(rates), tokens, bleu.value]
        table.add_row(name, *(f"{figure:.1f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
