"""Speed of one optimizer step, side by side with a plain loop over torch.nn.Transformer on the same batches.

    python benchmarks/training.py corpora/multi30k

The loops take turns batch by batch, so that whatever else the machine does slows all of them. The plain loop is what a
user would write: `nn.Transformer` with masks, one shared matrix, `cross_entropy` over all positions, Adam as it comes.
`nn.Transformer` also drops attention weights and hidden units of the feed-forward networks, which the paper does not; a
variant of the plain loop without these shows what they cost.
"""

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from aiayn.data.batching import Batch, BatchLoader, PairDataset, TokenBatchSampler
from aiayn.data.corpora.multi30k import multi30k
from aiayn.data.ragged import encode_pairs
from aiayn.data.tokenizer import PAD, Tokenizer, Vocabularies
from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.feed_forward.relu import FeedForward
from aiayn.model.model import Model
from aiayn.model.norm.post import PostNorm
from aiayn.model.position.sinusoidal import SinusoidalPosition, sinusoids
from aiayn.model.transformer import TranslationTransformer
from aiayn.training.loss.label_smoothing import label_smoothed_cross_entropy
from aiayn.training.module import losses

VOCAB_SIZE, LAYERS, D_MODEL, D_FF, HEADS, DROPOUT, LABEL_SMOOTHING = 8000, 3, 256, 1024, 4, 0.1, 0.1
TOKENS_PER_BATCH = 4096
adam = partial(torch.optim.Adam, lr=1e-4, betas=(0.9, 0.98), eps=1e-9)


class PlainTransformer(nn.Module):
    """What a user builds around `nn.Transformer`: embeddings, positions, masks, and the shared projection."""

    def __init__(self, *, only_papers_dropout: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, D_MODEL, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=D_MODEL**-0.5)
        self.positions = nn.Buffer(sinusoids(1024, D_MODEL))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(D_MODEL, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, batch_first=True)
        self.projection = nn.Linear(D_MODEL, VOCAB_SIZE, bias=False)
        self.projection.weight = self.embedding.weight
        if only_papers_dropout:
            for module in self.transformer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
                elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = 0.0  # of the hidden units of the feed-forward network

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * math.sqrt(D_MODEL) + self.positions[: tokens.size(1)])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), dtype=torch.bool, device=target.device)
        source_padding, target_padding = source == PAD, target == PAD
        output = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.projection(output)


class Loop:
    """A model, its loss and its optimizer; calling it does one optimizer step on a batch."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *,
        bfloat16: bool,
        optimizer: Callable[..., torch.optim.Adam],
    ) -> None:
        self.name = name
        self.model = model
        self.loss = loss
        self.bfloat16 = bfloat16
        self.optimizer = optimizer(model.parameters())

    def projected(self, batch: Batch) -> int:
        """Positions that the loop projects onto the vocabulary: the plain one all, with the padding."""
        return batch.target[:, 1:].numel() if self.loss is plain_loss else batch.step_tokens

    def __call__(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()


def plain_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.source, batch.target[:, :-1])
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=LABEL_SMOOTHING
    )


def aiayn_loss(model: Model, batch: Batch) -> Tensor:
    loss, *_ = losses(model, batch, partial(label_smoothed_cross_entropy, label_smoothing=LABEL_SMOOTHING))
    return loss / len(batch.positions)


def aiayn_model() -> TranslationTransformer:
    return TranslationTransformer(
        VOCAB_SIZE,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        d_model=D_MODEL,
        dropout=DROPOUT,
        attention=partial(MultiHeadAttention, D_MODEL, HEADS, d_k=D_MODEL // HEADS, d_v=D_MODEL // HEADS),
        feed_forward=partial(FeedForward, D_MODEL, D_FF),
        norm=partial(PostNorm, D_MODEL, DROPOUT),
        position=partial(SinusoidalPosition, D_MODEL),
        pad_id=PAD,
    )


def read_batches(folder: Path, count: int) -> list[Batch]:
    """The first batches of an epoch, as training sees them."""
    text = multi30k(path=folder, source_language="en", target_language="de")
    sources, targets = zip(*text.pairs("train"), strict=True)
    tokenizer = Tokenizer.train([*sources, *targets], vocab_size=VOCAB_SIZE)
    pairs = encode_pairs(Vocabularies.joint(tokenizer), sources, targets)
    sampler = TokenBatchSampler(
        pairs.source.lengths + 1, pairs.target.lengths + 1, tokens_per_batch=TOKENS_PER_BATCH
    )  # one more for EOS
    return [batch for batch, _ in zip(BatchLoader(PairDataset(pairs), sampler), range(count), strict=False)]


def linear_shapes(batch: Batch, *, projected: int) -> Counter[tuple[int, int, int]]:
    """`(positions, inputs, outputs)` of the matrix products of a forward pass, as the formulas have them."""
    source, target = batch.source.numel(), batch.target[:, 1:].numel()
    shapes: Counter[tuple[int, int, int]] = Counter()
    for positions in (source, target):
        shapes[positions, D_MODEL, 3 * D_MODEL] += LAYERS  # self-attention: queries, keys and values
        shapes[positions, D_MODEL, D_MODEL] += LAYERS  # self-attention: output
        shapes[positions, D_MODEL, D_FF] += LAYERS
        shapes[positions, D_FF, D_MODEL] += LAYERS
    shapes[target, D_MODEL, D_MODEL] += 2 * LAYERS  # attention to the source: queries and output
    shapes[source, D_MODEL, 2 * D_MODEL] += LAYERS  # attention to the source: keys and values
    shapes[projected, D_MODEL, VOCAB_SIZE] += 1
    return shapes


def step_flops(batch: Batch, *, projected: int) -> int:
    """Operations in the matrix products of a step: 2 a multiplication, the backward pass is two forward passes."""
    pairs, source, target = len(batch.source), batch.source.size(1), batch.target.size(1) - 1
    linear = sum(math.prod(shape) * count for shape, count in linear_shapes(batch, projected=projected).items())
    attention = 2 * LAYERS * D_MODEL * pairs * (source * source + target * target + target * source)
    return 3 * 2 * (linear + attention)


class MatrixProducts:
    """The three products of each linear map of a step and nothing else: the rate that a step could reach."""

    def __init__(self, batch: Batch, *, dtype: torch.dtype) -> None:
        self.operands = []
        for (positions, inputs, outputs), count in linear_shapes(batch, projected=batch.step_tokens).items():
            x, y = torch.randn(positions, inputs, dtype=dtype), torch.randn(positions, outputs, dtype=dtype)
            self.operands.append((x, torch.randn(outputs, inputs, dtype=dtype), y, count))
        self.flops = 6 * sum(x.numel() * len(weight) * count for x, weight, _, count in self.operands)

    def __call__(self, _: Batch) -> None:
        for x, weight, y, count in self.operands:
            for _repeat in range(count):
                torch.mm(x, weight.t())
                torch.mm(y, weight)
                torch.mm(y.t(), x)


def take_turns(steps: list[Callable[[Batch], None]], batches: list[Batch], *, rounds: int) -> list[list[float]]:
    """Seconds of every round over the batches, for every step function; one more round before them is not counted."""
    seconds = [[0.0] * rounds for _ in steps]
    for r in range(-1, rounds):
        for batch in batches:
            for step, sums in zip(steps, seconds, strict=True):
                start = time.perf_counter()
                step(batch)
                if r >= 0:
                    sums[r] += time.perf_counter() - start
    return seconds


MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm")
GROUPS = {
    "optimizer": ("Optimizer.",),
    "attention": (
        "aten::scaled_dot_product", "ScaledDotProduct", "aten::softmax", "SoftmaxBackward", "aten::_softmax",
        "aten::masked_fill", "MaskedFill",
    ),
    "softmax and loss": (
        "_ProjectedCrossEntropy", "aten::cross_entropy_loss", "aten::nll_loss", "NllLoss", "LogSoftmax",
    ),
    "dropout": ("aten::dropout", "_SparseDropout"),
    "layer norm": ("aten::layer_norm", "NativeLayerNorm"),
    "copies and casts": ("aten::copy_", "aten::to", "ToCopy", "aten::contiguous", "aten::clone", "aten::cat"),
}  # fmt: skip


def time_by_group(step: Callable[[Batch], None], batches: list[Batch]) -> dict[str, float]:
    """Share of the time of each kind of operation. Matrix products aside, an operation belongs to what called it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for batch in batches:
            step(batch)
    sums: Counter[str] = Counter()
    for event in profiler.events():
        names, caller = [event.name], event.cpu_parent
        while caller is not None:
            names.append(caller.name)
            caller = caller.cpu_parent
        group = "matrix products" if event.name in MATRIX_PRODUCTS else None
        for name in reversed(names):  # the outermost call first
            group = group or next((group for group, starts in GROUPS.items() if name.startswith(starts)), None)
        sums[group or "other"] += event.self_cpu_time_total
    return {group: sums[group] / sums.total() for group in ["matrix products", *GROUPS, "other"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="Multi30k: train.en.gz, train.de.gz, ...")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    batches = read_batches(arguments.folder, arguments.batches)
    products, loops = [], []
    for bfloat16 in (False, True):
        precision = "bfloat16" if bfloat16 else "float32"
        plain, same_dropout = PlainTransformer(only_papers_dropout=False), PlainTransformer(only_papers_dropout=True)
        loops += [
            Loop(f"plain loop, {precision}", plain, plain_loss, bfloat16=bfloat16, optimizer=adam),
            Loop(f"plain loop, our dropout, {precision}", same_dropout, plain_loss, bfloat16=bfloat16, optimizer=adam),
            Loop(
                f"aiayn, {precision}", aiayn_model(), aiayn_loss, bfloat16=bfloat16, optimizer=partial(adam, fused=True)
            ),
        ]
        products.append(MatrixProducts(batches[len(batches) // 2], dtype=getattr(torch, precision)))
    seconds = take_turns([*loops, *products], batches, rounds=arguments.rounds)
    report(loops, products, batches, seconds)


def report(loops: list[Loop], products: list[MatrixProducts], batches: list[Batch], seconds: list[list[float]]) -> None:
    console = Console(width=150)
    tokens = sum(batch.step_tokens for batch in batches)
    rates = [
        p.flops * len(batches) / statistics.median(s) for p, s in zip(products, seconds[len(loops) :], strict=True)
    ]
    real = tokens / sum(batch.target[:, 1:].numel() for batch in batches)
    console.print(
        f"{torch.get_num_threads()} threads, {len(batches)} batches of {tokens / len(batches):.0f} target tokens "
        f"({real:.1%} real), {len(seconds[0])} rounds, medians. Matrix products alone, of the same shapes: "
        f"{rates[0] / 1e9:.0f} GFLOP/s in float32, {rates[1] / 1e9:.0f} in bfloat16."
    )
    speed = Table("loop", "target tokens/s", "ratio (least, most)", "GFLOP/s", "of the products' rate", title="Speed")
    parts = Table("loop", "matrix products", *GROUPS, "other", title="Where the time goes (torch.profiler)")
    for i, loop in enumerate(loops):
        ratios = [plain / own for plain, own in zip(seconds[0], seconds[i], strict=True)]
        second = statistics.median(seconds[i])
        flops = sum(step_flops(batch, projected=loop.projected(batch)) for batch in batches) / second
        speed.add_row(
            loop.name,
            f"{tokens / second:.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})",
            f"{flops / 1e9:.0f}",
            f"{flops / rates[loop.bfloat16]:.0%}",
        )
    console.print(speed)
    for loop in loops:
        parts.add_row(loop.name, *(f"{share:.1%}" for share in time_by_group(loop, batches[:2]).values()))
    console.print(parts)


if __name__ == "__main__":
    main()
