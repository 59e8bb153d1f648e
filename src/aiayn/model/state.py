"""What step-by-step decoding remembers.

All hypotheses (beams) of a sentence write their keys and values into one cache, a slot for each token, and nothing is
moved when hypotheses are reordered: a mask says which slots are a hypothesis's own past. The beams are the query axis
of both attentions. The extra scores cost less than copying the caches at every step would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from aiayn.model.view import View


class Cache:
    """Keys and values that later decoding steps read again.

    Room grows by doubling, so that the cost of a step does not depend on how many went before.
    """

    def __init__(self) -> None:
        self.length = 0
        self._added: list[int] = []  # slots by each call
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append `key` `(batch, heads, new, d_k)`, `value` `(batch, heads, new, d_v)`; return all keys and values."""
        start, self.length = self.length, self.length + key.size(2)
        self._added.append(key.size(2))
        self._key = _write(self._key, key, start)
        self._value = _write(self._value, value, start)
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys `(batch, heads, length, d_k)` and values `(batch, heads, length, d_v)`."""
        assert self._key is not None
        assert self._value is not None
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def keep_last(self, steps: int) -> tuple[Tensor, Tensor]:
        """Forget all but what the last `steps` calls of `extend` have added; as `read`."""
        assert self._key is not None
        assert self._value is not None
        gone = sum(self._added[:-steps])
        self._added = self._added[-steps:]
        self._key, self._value, self.length = self._key[:, :, gone:], self._value[:, :, gone:], self.length - gone
        return self.read()

    def select(self, kept: int, moved: Tensor) -> None:
        """As `keep_rows`."""
        if self._key is not None and self._value is not None:
            self._key, self._value = keep_rows(self._key, kept, moved), keep_rows(self._value, kept, moved)


def _write(room: Tensor | None, new: Tensor, start: int) -> Tensor:
    """Put `new` `(batch, heads, new, d)` at `start` of `room`'s third axis, in a larger room where it does not fit."""
    end = start + new.size(2)
    if room is None or end > room.size(2):
        capacity = end if room is None else max(end, 2 * room.size(2))
        larger = new.new_empty(*new.shape[:2], capacity, new.size(3))
        if room is not None:
            larger[:, :, :start] = room[:, :, :start]
        room = larger
    room[:, :, start:end] = new
    return room


def keep_rows(x: Tensor, kept: int, moved: Tensor) -> Tensor:
    """Let rows `moved[0]` of `x` `(batch, ...)` become its rows `moved[1]`, in place, and keep the first `kept`."""
    to, source = moved
    x[to] = x[source]
    return x[:kept]


@dataclass
class Memory:
    """What the encoder made of the source: `states` `(batch, source, d_model)`, and the `mask` of its padding."""

    states: Tensor
    mask: Tensor | None


class DecoderState:
    """Where step-by-step decoding stands; a model's `step` advances it, `reorder` and `select` follow a search."""

    def __init__(self, memory: Memory, layers: int) -> None:
        self.memory = memory
        self.caches = [(Cache(), Cache()) for _ in range(layers)]  # of self- and of cross-attention, for each layer
        self.length = 0  # positions decoded so far
        device = memory.states.device
        # True where a cache slot is in a beam's own past, (batch, beam, slots)
        self.past = torch.ones(len(memory.states), 1, 0, dtype=torch.bool, device=device)
        self.positions = torch.empty(0, dtype=torch.long, device=device)  # of the slots, (slots,)

    def advance(self, beams: int) -> tuple[View, View]:
        """Open a slot for the next token of each beam; return what they see of their past, and of the memory."""
        device, sources = self.past.device, self.memory.states.size(1)
        own = torch.eye(beams, dtype=torch.bool, device=device).expand(len(self.past), -1, -1)
        self.past = torch.cat([self.past.expand(-1, beams, -1), own], dim=-1)
        here = torch.full((beams,), self.length, device=device)
        self.positions = torch.cat([self.positions, here])
        self.length += 1
        # One slot for each position: there was never a second beam.
        mask = None if self.past.size(-1) == self.length else self.past[:, None]
        own_view = View(here, self.positions, mask=mask, past=True)
        return own_view, View(here, torch.arange(sources, device=device), mask=self.memory.mask)

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
