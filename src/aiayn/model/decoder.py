"""The decoder stack (section 3.1), and the state of step-by-step decoding.

While decoding, all hypotheses (beams) of a sentence write their keys and values into one cache, a slot for each token,
and nothing is moved when hypotheses are reordered: a mask says which slots are a hypothesis's own past. The beams are
the query axis of both attentions. The extra scores cost less than copying the caches at every step would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from aiayn.model.attention.multi_head import Cache, keep_rows


@dataclass
class Memory:
    """What the encoder made of the source: `states` `(batch, source, d_model)`, and the `mask` of its padding."""

    states: Tensor
    mask: Tensor | None


class DecoderState:
    """Where step-by-step decoding stands; `Decoder.step` advances it, `reorder` and `select` follow a search."""

    def __init__(self, memory: Memory, layers: int) -> None:
        self.memory = memory
        self.caches = [(Cache(), Cache()) for _ in range(layers)]  # of self- and of cross-attention, for each layer
        self.length = 0  # positions decoded so far
        # True where a cache slot is in a beam's own past, (batch, beam, slots)
        self.past = torch.ones(len(memory.states), 1, 0, dtype=torch.bool, device=memory.states.device)

    def advance(self, beams: int) -> Tensor | None:
        """Open a slot for the next token of each beam; return the mask `(batch, 1, beam, slots)`, None if all True."""
        own = torch.eye(beams, dtype=torch.bool, device=self.past.device).expand(len(self.past), -1, -1)
        self.past = torch.cat([self.past.expand(-1, beams, -1), own], dim=-1)
        self.length += 1
        # One slot for each position: there was never a second beam.
        return None if self.past.size(-1) == self.length else self.past[:, None]

    def reorder(self, beam_index: Tensor) -> None:
        """Let beam j of row i go on from the former beam `beam_index[i, j]`, `(batch, beam)`; the width may change."""
        self.past = self.past.gather(1, beam_index[..., None].expand(-1, -1, self.past.size(-1)))

    def select(self, rows: Sequence[int]) -> None:
        """Keep the sentences `rows` of the batch, in that order; rows that keep their place cost nothing.

        They are known on the host, so that nothing waits for the device.
        """
        kept, changes = len(rows), [(place, row) for place, row in enumerate(rows) if place != row]
        moved = torch.tensor(changes, dtype=torch.long).reshape(-1, 2).t().to(self.past.device, non_blocking=True)
        self.past = keep_rows(self.past, kept, moved)
        self.memory.states = keep_rows(self.memory.states, kept, moved)
        if self.memory.mask is not None:
            self.memory.mask = keep_rows(self.memory.mask, kept, moved)
        for cache in chain.from_iterable(self.caches):
            cache.select(kept, moved)


class DecoderLayer(nn.Module):
    """Three sub-layers: masked self-attention, attention to the encoder's output, feed-forward network."""

    def __init__(
        self,
        *,
        attention: Callable[[], nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.self_attention = attention()
        self.self_attention_norm = norm()
        self.cross_attention = attention()
        self.cross_attention_norm = norm()
        self.feed_forward = feed_forward()
        self.feed_forward_norm = norm()

    def forward(
        self, x: Tensor, memory: Memory, *, caches: tuple[Cache, Cache] | None = None, past: Tensor | None = None
    ) -> Tensor:
        """All positions at once, none seeing later ones; or, with caches, one position of every beam.

        Args:
            x: `(batch, target, d_model)`, or `(batch, beam, d_model)` with caches.
            memory: The encoder's output.
            caches: Of self-attention and of cross-attention.
            past: With caches: the slots that a beam may attend to, as `DecoderState.advance` gives them.

        Returns:
            As `x`.
        """
        own, cross = caches or (None, None)
        x = self.self_attention_norm(x, lambda x: self.self_attention(x, mask=past, cache=own, causal=caches is None))
        x = self.cross_attention_norm(
            x, lambda x: self.cross_attention(x, memory.states, mask=memory.mask, cache=cross)
        )
        return self.feed_forward_norm(x, self.feed_forward)


class Decoder(nn.Module):
    """N layers of the same kind, each with weights of its own."""

    def __init__(
        self,
        layers: int,
        *,
        attention: Callable[[], nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(attention=attention, feed_forward=feed_forward, norm=norm) for _ in range(layers)
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """`(batch, target, d_model)` to `(batch, target, d_model)`."""
        for layer in self.layers:
            x = layer(x, memory)
        return x

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """One position of every beam: `(batch, beam, d_model)` to `(batch, beam, d_model)`; advances the state."""
        past = state.advance(x.size(1))
        for layer, caches in zip(self.layers, state.caches, strict=True):
            x = layer(x, state.memory, caches=caches, past=past)
        return x
