"""The bytes of objects: in memory up to a limit, above it in files that are mapped back when they are read.

Nothing is ever lost: a payload leaves memory when its file is written, and the file goes with the last reader of a
payload that was discarded. Least recently used payloads are spilled first, by the writer that found memory full.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

from seeker.cluster.untyped import arrow as pa

MIN_SPILLED_BYTES = 4096  # a smaller payload costs as much as a file
_RETRY_S = 5.0  # after a failed spill, a full disk most likely

_log = logging.getLogger("seeker.cluster.local")


class Payload:
    """One base or patch: a buffer, or the batches of a native table (`schema` is given)."""

    __slots__ = ("__weakref__", "_data", "_path", "is_discarded", "num_bytes", "schema")

    def __init__(self, data: Any, schema: Any = None) -> None:
        self.schema = schema
        self.num_bytes: int = data.size if schema is None else sum(batch.nbytes for batch in data)
        self._data: Any = data
        self._path: Path | None = None
        self.is_discarded = False

    @property
    def is_spilled(self) -> bool:
        return self._path is not None

    def read(self) -> Any:
        """The data; of a spilled payload a mapping of its file, which holds no descriptor."""
        data = self._data
        if data is not None:
            return data
        with pa.memory_map(str(self._path)) as source:
            if self.schema is None:
                return source.read_buffer()
            return list(pa.ipc.open_stream(source.read_buffer()))

    def spill(self, path: Path) -> None:
        """Write the data to a new file and let go of it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                self._write(file)
        except BaseException:
            path.unlink()
            raise
        weakref.finalize(self, path.unlink, missing_ok=True).atexit = False
        self._path = path
        self._data = None

    def _write(self, file: Any) -> None:
        if self.schema is not None:
            with pa.ipc.new_stream(file, self.schema) as writer:
                for batch in self._data:
                    writer.write_batch(batch)
            return
        left = memoryview(self._data)
        while left:
            left = left[file.write(left) :]


class Shelf:
    """Keeps payloads in memory below a limit. Its lock is held for bookkeeping only, never while bytes move."""

    def __init__(self, directory: Path | None = None, limit_bytes: int | None = None) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._num_bytes = 0  # in memory
        self._spillable: OrderedDict[int, Payload] = OrderedDict()  # least recently used first
        self._names = itertools.count()
        self._retry_at = 0.0

    def add(self, payload: Payload) -> Payload:
        """Keep it; may spill others, or itself when it is above the limit."""
        with self._lock:
            self._hold(payload)
        while (victim := self._next_victim()) is not None:
            self._spill(victim)
        return payload

    def read(self, payload: Payload) -> Any:
        with self._lock:
            if id(payload) in self._spillable:
                self._spillable.move_to_end(id(payload))
        return payload.read()

    def discard(self, payload: Payload) -> None:
        """No new reader will come; those that hold it may finish."""
        with self._lock:
            payload.is_discarded = True
            if self._spillable.pop(id(payload), None) is not None:
                self._num_bytes -= payload.num_bytes

    def _hold(self, payload: Payload) -> None:
        if self._limit_bytes is not None and payload.num_bytes >= MIN_SPILLED_BYTES:
            self._num_bytes += payload.num_bytes
            self._spillable[id(payload)] = payload

    def _next_victim(self) -> Payload | None:
        with self._lock:
            if self._limit_bytes is None or self._num_bytes <= self._limit_bytes or time.monotonic() < self._retry_at:
                return None
            _, victim = self._spillable.popitem(last=False)
            self._num_bytes -= victim.num_bytes
            return victim

    def _spill(self, victim: Payload) -> None:
        assert self._directory is not None
        try:
            victim.spill(self._directory / f"{next(self._names)}.spilled")
        except OSError as error:
            _log.warning("object data (%d bytes) stays in memory: %s", victim.num_bytes, error)
            with self._lock:
                self._retry_at = time.monotonic() + _RETRY_S
                if not victim.is_discarded:
                    self._hold(victim)
                    self._spillable.move_to_end(id(victim), last=False)
