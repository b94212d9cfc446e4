"""Which finished calls a session still remembers, so that the cluster's memory stays flat."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

KEPT_READ = 2048
KEPT_UNREAD = 65_536
KEPT_BYTES = 64 * 2**20
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
    _bytes: int = 0

    def finished(self, task: int, num_bytes: int) -> list[int]:
        """Remember it; returns the calls to forget for it."""
        self._unread[task] = num_bytes
        self._bytes += num_bytes
        forgotten: list[int] = []
        while len(self._unread) > self.kept_unread:
            forgotten.append(self._drop(self._unread))
        while len(self._read) > self.kept_read or (self._bytes > self.kept_bytes and len(self._read) > _ALWAYS_KEPT):
            forgotten.append(self._drop(self._read))
        return forgotten

    def read(self, task: int) -> None:
        if task in self._unread:
            self._read[task] = self._unread.pop(task)

    def _drop(self, calls: OrderedDict[int, int]) -> int:
        task, num_bytes = calls.popitem(last=False)
        self._bytes -= num_bytes
        return task
