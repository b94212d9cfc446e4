"""Which finished calls a session still remembers, so that the cluster's memory stays flat."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

KEPT_READ = 2048
KEPT_UNREAD = 65_536
KEPT_BYTES = 32 * 2**20  # of inputs and outputs, those nobody was told of up to sixteen times as much
_UNREAD_FACTOR = 16
_ALWAYS_KEPT = 64


@dataclass(slots=True)
class History:
    """Finished calls, oldest first: those whose end somebody was told are forgotten long before those nobody asked for.

    Example: after `finished(1, 100)` and `read(1)`, call 1 is forgotten when 2048 later ones were read.
    """

    kept_read: int = KEPT_READ
    kept_unread: int = KEPT_UNREAD
    kept_bytes: int = KEPT_BYTES
    _read: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])  # call: bytes
    _unread: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    num_bytes: int = 0

    def finished(self, task: int, num_bytes: int) -> list[int]:
        """Remember it; returns the calls to forget for it."""
        self._unread[task] = num_bytes
        self.num_bytes += num_bytes
        forgotten: list[int] = []
        while self._is_full(self._read, self.kept_read, self.kept_bytes):
            forgotten.append(self._drop(self._read))
        while self._is_full(self._unread, self.kept_unread, self.kept_bytes * _UNREAD_FACTOR):
            forgotten.append(self._drop(self._unread))
        return forgotten

    def read(self, task: int) -> None:
        if task in self._unread:
            self._read[task] = self._unread.pop(task)

    def _is_full(self, calls: OrderedDict[int, int], count: int, num_bytes: int) -> bool:
        return len(calls) > count or (self.num_bytes > num_bytes and len(calls) > _ALWAYS_KEPT)

    def _drop(self, calls: OrderedDict[int, int]) -> int:
        task, num_bytes = calls.popitem(last=False)
        self.num_bytes -= num_bytes
        return task
