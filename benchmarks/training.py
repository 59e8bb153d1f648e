"""Speed of one optimizer step, side by side with a plain loop over torch.nn.Transformer on the same batches.

    python benchmarks/training.py ../shared/data/multi30k

The loops take turns batch by batch, so that whatever else the machine does slows all of them. The plain loop is what a
user would write: `nn.Transformer` with masks, one shared matrix, `cross_entropy` over all positions, Adam as it comes.
`nn.Transformer` also drops attention weights and hidden units of the feed-forward networks, which the paper does not; a
variant of the plain loop without these shows what they cost.
"""

import argparse
import gzip
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from aiayn.data.tokenizer import BOS, EOS, PAD, Tokenizer
from aiayn.model.attention import MultiHeadAttention
from aiayn.model.feed_forward import FeedForward
from aiayn.model.norm import PostNorm
from aiayn.model.position import SinusoidalPosition, sinusoids
from aiayn.model.transformer import Transformer
from aiayn.training.loss import label_smoothed_cross_entropy

VOCAB_SIZE, LAYERS, D_MODEL, D_FF, HEADS, DROPOUT, LABEL_SMOOTHING = 8000, 3, 256, 1024, 4, 0.1, 0.1
TOKENS_PER_BATCH = 4096
ADAM = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-9}


@dataclass
class Pairs:
    """Padded ids of one batch: `source` `(pairs, source)`; `target` `(pairs, target)`, from BOS to EOS."""

    source: Tensor
    target: Tensor

    @property
    def tokens(self) -> int:
        """Real target tokens, EOS included."""
        return int((self.target[:, 1:] != PAD).sum())


class PlainTransformer(nn.Module):
    """What a user builds around `nn.Transformer`: embeddings, positions, masks, and the shared projection."""

    def __init__(self, *, only_papers_dropout: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, D_MODEL, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=D_MODEL**-0.5)
        self.register_buffer("positions", sinusoids(1024, D_MODEL))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(D_MODEL, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, batch_first=True)
        self.projection = nn.Linear(D_MODEL, VOCAB_SIZE, bias=False)
        self.projection.weight = self.embedding.weight
        if only_papers_dropout:
            for module in self.transformer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
                elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout = nn.Identity()

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

    def __init__(self, name: str, model: nn.Module, loss: Callable[..., Tensor], *, bfloat16: bool, fused: bool) -> None:
        self.name = name
        self.model = model
        self.loss = loss
        self.bfloat16 = bfloat16
        self.optimizer = torch.optim.Adam(model.parameters(), **ADAM, **({"fused": True} if fused else {}))

    def __call__(self, batch: Pairs) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()


def plain_loss(model: nn.Module, batch: Pairs) -> Tensor:
    logits = model(batch.source, batch.target[:, :-1])
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=LABEL_SMOOTHING
    )


def aiayn_loss(model: Transformer, batch: Pairs) -> Tensor:
    features = model.features(batch.source, batch.target[:, :-1])
    labels = batch.target[:, 1:]
    real = labels != PAD
    loss, _ = label_smoothed_cross_entropy(
        features[real], model.embedding.weight, labels[real], label_smoothing=LABEL_SMOOTHING
    )
    return loss / real.sum()


def aiayn_model() -> Transformer:
    return Transformer(
        VOCAB_SIZE,
        layers=LAYERS,
        d_model=D_MODEL,
        dropout=DROPOUT,
        attention=partial(MultiHeadAttention, D_MODEL, HEADS, d_k=D_MODEL // HEADS, d_v=D_MODEL // HEADS),
        feed_forward=partial(FeedForward, D_MODEL, D_FF),
        norm=partial(PostNorm, D_MODEL, DROPOUT),
        position=partial(SinusoidalPosition, D_MODEL),
        pad_id=PAD,
    )


def read_batches(folder: Path, count: int) -> list[Pairs]:
    """Evenly spaced batches of near-equal lengths, at most TOKENS_PER_BATCH tokens on either side."""
    text = [
        gzip.open(folder / f"train.{language}.gz", "rt", encoding="utf-8", newline="\n").read().split("\n")[:-1]
        for language in ("en", "de")
    ]
    tokenizer = Tokenizer.train(iter(text[0] + text[1]), vocab_size=VOCAB_SIZE)
    pairs = sorted(zip(*map(tokenizer.encode, text), strict=True), key=lambda p: (max(map(len, p)), len(p[0])))
    batches, rows = [], []
    for pair in pairs:
        longest = max(map(len, pair)) + 1
        if (len(rows) + 1) * longest > TOKENS_PER_BATCH:
            batches.append(rows)
            rows = []
        rows.append(pair)
    chosen = [batches[round((i + 0.5) * len(batches) / count)] for i in range(count)]
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_value=PAD)
    return [
        Pairs(
            pad([torch.tensor([*source, EOS]) for source, _ in rows]),
            pad([torch.tensor([BOS, *target, EOS]) for _, target in rows]),
        )
        for rows in chosen
    ]


def linear_shapes(batch: Pairs, *, projected: int) -> Counter[tuple[int, int, int]]:
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


def step_flops(batch: Pairs, *, projected: int) -> int:
    """Operations in the matrix products of a step: 2 a multiplication, the backward pass is two forward passes."""
    pairs, source, target = len(batch.source), batch.source.size(1), batch.target.size(1) - 1
    linear = sum(math.prod(shape) * count for shape, count in linear_shapes(batch, projected=projected).items())
    attention = 2 * LAYERS * D_MODEL * pairs * (source * source + target * target + target * source)
    return 3 * 2 * (linear + attention)


class MatrixProducts:
    """The three products of each linear map of a step and nothing else: the rate that a step could reach."""

    def __init__(self, name: str, batch: Pairs, *, dtype: torch.dtype) -> None:
        self.name = name
        self.operands = []
        for (positions, inputs, outputs), count in linear_shapes(batch, projected=batch.tokens).items():
            x, y = torch.randn(positions, inputs, dtype=dtype), torch.randn(positions, outputs, dtype=dtype)
            self.operands.append((x, torch.randn(outputs, inputs, dtype=dtype), y, count))
        self.flops = 6 * sum(x.numel() * len(weight) * count for x, weight, _, count in self.operands)

    def __call__(self, _: Pairs) -> None:
        for x, weight, y, count in self.operands:
            for _ in range(count):
                torch.mm(x, weight.t())
                torch.mm(y, weight)
                torch.mm(y.t(), x)


def take_turns(steps: list[Callable[[Pairs], None]], batches: list[Pairs], *, rounds: int) -> list[list[float]]:
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


GROUPS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::", "aten::mkldnn_linear"),
    "attention": ("aten::_scaled_dot_product", "aten::scaled_dot_product_attention", "ScaledDotProduct"),
    "softmax and loss": ("_ProjectedCrossEntropy", "aten::_log_softmax", "aten::cross_entropy", "aten::nll_loss", "LogSoftmaxBackward", "NllLoss"),
    "dropout": ("aten::bernoulli_", "aten::geometric_", "aten::dropout", "_Dropout"),
    "layer norm": ("aten::native_layer_norm",),
    "optimizer": ("Optimizer.",),
    "copies and casts": ("aten::copy_", "aten::to", "aten::contiguous", "aten::clone", "aten::cat"),
}  # fmt: skip


def time_by_group(step: Callable[[Pairs], None], batches: Iterable[Pairs]) -> dict[str, float]:
    """Share of the time of each group of operations; an operation without one counts to what called it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for batch in batches:
            step(batch)
    sums: Counter[str] = Counter()
    for event in profiler.events():
        chain = [event]
        while chain[-1].cpu_parent is not None:
            chain.append(chain[-1].cpu_parent)
        names = [e.name for e in chain]
        group = next((g for name in names for g, starts in GROUPS.items() if name.startswith(starts)), "other")
        if any(name.startswith("Optimizer.") for name in names):
            group = "optimizer"
        sums[group] += event.self_cpu_time_total
    return {group: sums[group] / sums.total() for group in [*GROUPS, "other"]}
