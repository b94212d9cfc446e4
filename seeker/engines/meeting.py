"""Where trainer ranks meet: a key-value store that rank 0 serves, on the address and port that the driver chose.

Its own waits cannot be trusted with a deadline (one whose server is stopped blocks for ever), so what may block is done
on a thread that is given up at the deadline.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as distributed

from seeker.errors import PortTakenError, RankError

Value = TypeVar("Value")

_torch: Any = distributed  # its stores are public, their types are not
_POLL_S = 0.05
_last_host: list[Any] = []  # rank 0's last store outlives its generation, so that the others can read who was lost


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where and by when the ranks of one generation of a gang meet.

    Example: ``Rendezvous("127.0.0.1", 23011, "7f3a", join_deadline_s=60.0, sum_deadline_s=120.0)``.
    """

    address: str  # of rank 0
    port: int
    generation: str
    join_deadline_s: float
    sum_deadline_s: float  # how long a rank waits for the others in one sum


def within(seconds: float, work: Callable[[], Value], what: str) -> Value:
    """What `work` returns or raises; `RankError` when it takes longer, and then its thread is left behind."""
    outcome: list[Value | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="ranks", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise RankError(f"{what} did not answer within {seconds:.3g} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class Meeting:
    """One rank's view of the store. Keys are of this generation, so another gang on the same port is never met."""

    def __init__(self, rank: int, names: Sequence[str], rendezvous: Rendezvous) -> None:
        self._rank = rank
        self._names = names
        self._host: Any = _serve_or_reach(rank, len(names), rendezvous)
        self.store: Any = _torch.PrefixStore(rendezvous.generation, self._host)

    def gather(self, seconds: float) -> None:
        """Until every rank is here; past the deadline `RankError` names those who are not."""
        self.store.set(f"here/{self._rank}", "")
        absent = self._absent("here", seconds)
        if absent:
            raise RankError(f"{self.name(absent)} did not join within {seconds:.3g} s")

    def say(self, key: str, text: str) -> None:
        """Leave a word for the others; it does not wait for an answer."""
        self.store.set(f"{key}/{self._rank}", text)

    def words(self, key: str, seconds: float) -> dict[int, str]:
        """What each rank has left under `key`, waiting up to `seconds` for all of them."""
        absent = self._absent(key, seconds)
        present = [rank for rank in range(len(self._names)) if rank not in absent]
        return {rank: self.store.get(f"{key}/{rank}").decode() for rank in present}

    def name(self, ranks: Sequence[int]) -> str:
        """Example: ``rank 1 (executor 3f2a on node-2)``."""
        return ", ".join(f"rank {rank} ({self._names[rank]})" for rank in ranks)

    def _absent(self, key: str, seconds: float) -> list[int]:
        end = time.monotonic() + seconds
        absent = list(range(len(self._names)))
        while True:
            absent = [rank for rank in absent if not self.store.check([f"{key}/{rank}"])]
            if not absent or time.monotonic() > end:
                return absent
            time.sleep(_POLL_S)


def _serve_or_reach(rank: int, world: int, rendezvous: Rendezvous) -> Any:
    address, port = rendezvous.address, rendezvous.port
    timeout = timedelta(seconds=rendezvous.join_deadline_s)
    listening = None if rank else _bind(address, port)
    try:
        store = _torch.TCPStore(
            address, port, world, rank == 0, timeout, wait_for_workers=False, master_listen_fd=listening
        )
    except RuntimeError as error:
        raise RankError(f"rank {rank} cannot reach the rendezvous at {address}:{port}: {_first_line(error)}") from error
    if rank == 0:
        _last_host[:] = [store]
    return store


def _bind(address: str, port: int) -> int:
    """The listening socket's descriptor, on the rendezvous' own address only: the store knows no password."""
    try:
        return socket.create_server((address, port)).detach()
    except OSError as error:
        text = f"rank 0 cannot listen on {address}:{port}: {error.strerror}; choose another rendezvous"
        raise (PortTakenError if error.errno == errno.EADDRINUSE else RankError)(text) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
