"""Executors' logs of a long-lived cluster: a bounded number of files, each of a bounded size."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path

MAX_ENDED = 200
MAX_BYTES = 16 * 2**20
KEPT_BYTES = 2**20
_LOOK_S = 5.0


class LogKeeper:
    """Logs of running executors are cut to their end when they grow too large; of ended ones the newest are kept.

    Example: ``LogKeeper(Path("logs")).path("4f2a")`` is ``logs/executor-4f2a.log``.
    """

    def __init__(self, directory: Path, max_ended: int = MAX_ENDED, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._running: set[Path] = set()
        self._ended: deque[Path] = deque()

    def begin(self, executor: str) -> Path:
        path = self._directory / f"executor-{executor}.log"
        self._running.add(path)
        return path

    def end(self, path: Path) -> None:
        self._running.discard(path)
        cut(path, self._max_bytes)
        self._ended.append(path)
        while len(self._ended) > self._max_ended:
            self._ended.popleft().unlink(missing_ok=True)

    async def watch(self) -> None:
        """Cut logs of running executors as they grow, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for path in self._running:
                cut(path, self._max_bytes)


def cut(path: Path, max_bytes: int, kept_bytes: int = KEPT_BYTES) -> None:
    """Leave only the end of a file that is too large. Its writer appends, so it goes on after what is left."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size <= max_bytes:
            return
        with path.open("r+b") as log:
            log.seek(-kept_bytes, os.SEEK_END)
            rest = log.read()
            log.truncate(0)
        with path.open("ab") as log:  # appended, as its writer may have written meanwhile
            log.write(b"[the beginning was cut]\n" + rest)
