"""Fixed sinusoids (section 3.5), added to the embeddings at the bottom of both stacks.

A position module is called `position(x, offset=0)`; cached decoding passes the number of positions that went before as
the offset. `longest` is the greatest length that it can encode, or None.
"""

import torch
from torch import Tensor, nn

LARGEST = 2**26  # numbers of a table of positions


def check_table(length: int, d_model: int) -> None:
    """Refuse a table of positions that there is no text for.

    Raises:
        ValueError: if it would be empty, or of more than 2^26 numbers, 256 MiB: 65,536 positions of d_model 1024.
    """
    most = LARGEST // max(d_model, 1)
    if not 1 <= length <= most:
        raise ValueError(
            f"model.position.max_length must be from 1 to {most:,} with d_model={d_model}, got {length}. "
            "Give the longest length."
        )


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same); `(length, d_model)`.

    Sine and cosine alternate as in the paper's formula; its code, tensor2tensor, puts all sines first, which only
    permutes the dimensions. The angles are computed in float64: at position 10,000 float32 is off by up to 1e-3.
    The table is made on the CPU, also where a model is only described: to reckon without data torch loads its compiler.
    """
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    rate = 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model)
    angle = position * rate  # (length, d_model / 2)
    table = torch.empty(length, d_model, device="cpu")
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


class SinusoidalPosition(nn.Module):
    """Add fixed sinusoids, for sequences of any length: the table grows when a longer one comes."""

    longest: int | None = None

    def __init__(self, d_model: int, max_length: int = 1024) -> None:
        super().__init__()
        if d_model < 2 or d_model % 2:
            raise ValueError(
                f"model.d_model must be even for sinusoidal positions, which pair a sine with a cosine, got {d_model}. "
                "Choose an even d_model or model/position=learned."
            )
        check_table(max_length, d_model)
        # Neither parameter nor buffer: it follows from d_model, and DDP would broadcast a buffer at every step.
        self.table = sinusoids(max_length, d_model)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add the encodings of positions `offset`, `offset + 1`, ... to `x` `(..., length, d_model)`."""
        end = offset + x.size(-2)
        if end > len(self.table):
            self.table = sinusoids(2 * end, x.size(-1))
        if self.table.device != x.device:
            self.table = self.table.to(x.device)
        return x + self.table[offset:end].to(x.dtype)
