"""Ranks in processes of their own, joined by torch.distributed: gloo on the CPU, NCCL on GPUs.

A process group of our own rather than torch's default one: it can be left and joined again in the same process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from seeker.engines.meeting import Meeting, Rendezvous, within
from seeker.engines.ranks import PendingSum
from seeker.errors import RankError

_torch: Any = distributed  # its process groups are public, their types are not

NAMING_S = 3.0  # how long a rank that lost another waits to hear who is left
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class JoinedRanks:
    """This rank and its peers, from `join_ranks` until one of them leaves or is lost."""

    def __init__(
        self, rank: int, meeting: Meeting, group: Any, device: torch.device, sum_deadline_s: float, naming_s: float
    ) -> None:
        self.rank = rank
        self.device = device
        self.world = group.size()
        self.waited_s = 0.0
        self._meeting = meeting
        self._group: Any = group  # None once left
        self._sum_deadline_s = sum_deadline_s
        self._naming_s = naming_s
        self._num_sums = 0
        # Every sum under way. A work holds the connections open, so none may outlive `leave`.
        self._works: dict[int, Any] = {}
        self._left = ""

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for pending in [self.begin_sum_(tensor) for tensor in tensors]:
            pending.wait()

    def begin_sum_(self, tensor: Tensor) -> PendingSum:
        if self._group is None:
            raise RankError(f"rank {self.rank} has left the others ({self._left}); join again")
        self._num_sums += 1
        try:
            self._meeting.say("at", str(self._num_sums))
            self._works[self._num_sums] = self._group.allreduce([tensor])
            return _Sum(self, self._num_sums)
        except RuntimeError as error:
            raise self._lost(error, self._num_sums) from error

    def leave(self, reason: str) -> None:
        if self._group is None:
            return
        self._left = reason
        group, self._group = self._group, None
        with contextlib.suppress(RuntimeError):  # rank 0 and its store may be gone
            self._meeting.say("left", reason[:500])
        group.abort()
        self._works.clear()  # the connections close: the others' sums fail, and they see who has left a word

    def finish(self, number: int) -> None:
        """Wait for one sum."""
        started = time.perf_counter()
        try:
            if number not in self._works:
                raise RuntimeError("it was given up")
            self._works[number].wait(timedelta(seconds=self._sum_deadline_s))
            del self._works[number]
        except RuntimeError as error:
            raise self._lost(error, number) from error
        finally:
            self.waited_s += time.perf_counter() - started

    def _lost(self, error: RuntimeError, number: int) -> RankError:
        """Leave, and name who is gone."""
        if self._group is None:
            return RankError(f"rank {self.rank} has left the others ({self._left})")
        self.leave("")
        try:
            text = within(self._naming_s, self._name_the_lost, "")
        except (RankError, RuntimeError):  # the store is rank 0's
            text = f"no answer from {self._meeting.name([0])}, which serves the rendezvous"
        return RankError(f"sum {number} of {self._meeting.name([self.rank])} failed: {text} [{_short(error)}]")

    def _name_the_lost(self) -> str:
        # Rank 0 waits longest: its process may be ended once it has told, and the store with it.
        words = self._meeting.words("left", self._naming_s * (0.5 if self.rank else 0.8))
        silent = [rank for rank in range(self.world) if rank not in words]
        if silent:
            at = self._meeting.words("at", 0.0)
            where = ", ".join(at.get(rank, "0") for rank in silent)
            return f"no answer from {self._meeting.name(silent)}, which had begun sum {where}"
        causes = [f"{self._meeting.name([rank])} left: {word}" for rank, word in words.items() if word]
        return "; ".join(causes) or "the connection between ranks broke, none of them is lost"


class _Sum:
    def __init__(self, ranks: JoinedRanks, number: int) -> None:
        self._ranks = ranks
        self._number = number

    def wait(self) -> None:
        self._ranks.finish(self._number)


def join_ranks(rank: int, names: Sequence[str], rendezvous: Rendezvous, device: torch.device) -> JoinedRanks:
    """Join the others; raises `RankError` naming who did not come by the deadline, `PortTakenError` on rank 0.

    `names` says for each rank who it is, for errors. A sum fails by `rendezvous.sum_deadline_s`, the naming included.
    """
    # A third at most is for naming who was lost.
    naming_s = min(NAMING_S, rendezvous.sum_deadline_s / 3)
    sum_s = rendezvous.sum_deadline_s - naming_s
    end = time.monotonic() + rendezvous.join_deadline_s

    def join() -> JoinedRanks:
        meeting = Meeting(rank, names, rendezvous)
        meeting.gather(max(0.0, end - time.monotonic() - 1.0))
        group = _make_group(rank, len(names), meeting.store, rendezvous.address, sum_s, device)
        return JoinedRanks(rank, meeting, group, device, sum_s, naming_s)

    try:
        return within(rendezvous.join_deadline_s, join, f"the rendezvous at {rendezvous.address}:{rendezvous.port}")
    except RuntimeError as error:
        raise RankError(f"rank {rank} ({names[rank]}) cannot join the others: {_short(error)}") from error


def _make_group(rank: int, world: int, store: Any, address: str, sum_s: float, device: torch.device) -> Any:
    timeout = timedelta(seconds=sum_s)
    if device.type == "cuda":
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a wait past the deadline raises instead of ending the process
        options = _torch.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return _torch.ProcessGroupNCCL(store, rank, world, options)
    gloo = _torch.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    local = address in _LOOPBACK
    options._devices = [gloo.create_device(hostname=address) if local else gloo.create_default_device()]
    return gloo(store, rank, world, options)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0].rpartition("] ")[2][:200]
