"""Which share of a batch a process computes. Whoever makes the processes, the strategy, says so; nothing else does."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Replica:
    """A copy of the model that computes a share of every batch.

    Attributes:
        count: How many copies there are.
        index: Which of them this is.
    """

    count: int = 1
    index: int = 0

    @property
    def share(self) -> slice:
        """This copy's share of what has a fixed order, such as the sentences of the dev set."""
        return slice(self.index, None, self.count)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all copies of their `x`."""
        total = x.clone()
        if self.count > 1:
            dist.all_reduce(total)
        return total

    def gather(self, x: Any) -> list[Any]:
        """What the copies have as their `x`, in order."""
        if self.count == 1:
            return [x]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, x)
        return found


ALONE = Replica()
