"""The seam between one trainer and many: what a rank is, and the one thing ranks do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from seeker.engines.devices import CPU


class PendingSum(Protocol):
    """A sum under way."""

    def wait(self) -> None:
        """Until the tensor holds the sum; raises `RankError` when another rank is lost."""
        ...


class Ranks(Protocol):
    """This trainer's place among its peers.

    Every rank reads the whole batch, trains on its slice, and sums gradients and per-token scores with the others, so
    all ranks hold the same policy and report the same metrics. All ranks begin the same sums in the same order.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where the tensors that are summed live."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for sums, since the ranks were joined."""
        ...

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, in place."""
        ...

    def begin_sum_(self, tensor: Tensor) -> PendingSum:
        """Begin to replace the tensor by its sum over all ranks; it is not touched until `wait` has returned."""
        ...

    def leave(self, reason: str) -> None:
        """Go from the others, who fail at once in their next sum and read `reason`. Leaving twice is harmless."""
        ...


class SingleRank:
    """A trainer on its own."""

    rank = 0
    world = 1
    waited_s = 0.0
    device = CPU

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def begin_sum_(self, tensor: Tensor) -> PendingSum:
        return _Done()

    def leave(self, reason: str) -> None:
        """Nobody to leave."""


class _Done:
    def wait(self) -> None:
        """It was done when it began."""


def exchange(ranks: Ranks, value: int) -> list[int]:
    """Every rank's value, by rank."""
    values = torch.zeros(ranks.world, dtype=torch.int64, device=ranks.device)
    values[ranks.rank] = value
    ranks.sum_([values])
    return [int(each) for each in values.cpu()]
