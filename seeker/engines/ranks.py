"""The seam between one trainer and many: what a rank is, and the one thing ranks do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """This trainer's place among its peers.

    Every rank reads the whole batch, trains on its slice, and sums gradients and per-token scores with the others, so
    all ranks hold the same policy and report the same metrics.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, in place."""
        ...


class SingleRank:
    """A trainer on its own."""

    rank = 0
    world = 1

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""
