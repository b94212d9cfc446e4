"""The driver's lease: one object that says it is alive, and what is its own.

It is replaced again and again. A service whose driver has been silent for `lease_s` ends its work; what a crashed
driver has left is found by its lease (see `leftovers.py`).
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from seeker.cluster.local.reaper import start_time
from seeker.cluster.objects import FlightObjects
from seeker.errors import ClusterError

LEASE_APPLICATION, LEASE_NAME = "seeker-leases", "lease"
RENEWALS_PER_LEASE = 6
_NAME_CHARS = 100
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
OWNED = ("sessions", "applications", "prefixes", "code", "abandoned")

_log = logging.getLogger("seeker.cluster")


class Lease:
    """Renewed by a thread of its own until it is closed.

    The object: ``{"count": 7, "run_id": "demo", "host": "...", "pid": 4711, "pid_started": "90210", "renewed": 1.7e9,
    "lease_s": 30.0, "sessions": [...], "applications": [...], "prefixes": [...], "code": [...], "abandoned": [...]}``,
    pickled. `code`: digests of archives; `abandoned`: sessions that must not be closed.
    """

    def __init__(self, objects: FlightObjects, run_id: str, lease_s: float, prefixes: Callable[[], Iterable[str]]):
        """`objects` is this lease's alone; `prefixes` tells where else the driver has put objects."""
        self.prefix = f"{LEASE_APPLICATION}/{plain_name(run_id)}-{secrets.token_hex(4)}"
        self.key = f"{self.prefix}/{LEASE_NAME}"
        self.lease_s = lease_s
        self._objects = objects
        self._prefixes = prefixes
        self._count = 0
        self._owned: dict[str, dict[str, None]] = {kind: {} for kind in OWNED}
        self._identity = {"run_id": run_id, "host": host_name(), "pid": os.getpid(), "lease_s": lease_s}
        self._identity["pid_started"] = start_time(os.getpid())
        self._lock = threading.Lock()  # of what is owned: never held while the cache is waited for
        self._writing = threading.Lock()  # one write at a time, so that the last one tells all
        self._closed = threading.Event()
        self._renew()
        self._thread = threading.Thread(target=self._keep, name="seeker-lease", daemon=True)
        self._thread.start()

    def own(self, **names: str) -> None:
        """Written before what it names is made, so that nothing can be left that no lease names.

        Example: ``lease.own(sessions="demo-trainer-5f0a", prefixes="seeker-1f/demo-trainer-5f0a")``.
        """
        self.note(**names)
        self._renew()

    def note(self, **names: str) -> None:
        """Written with the next renewal."""
        with self._lock:
            for kind, name in names.items():
                self._owned[kind][name] = None

    def disown(self, **names: str) -> None:
        """Written with the next renewal."""
        with self._lock:
            for kind, name in names.items():
                self._owned[kind].pop(name, None)

    def close(self) -> None:
        """Last of all: until then the lease names what may still be there."""
        self._closed.set()
        self._thread.join()
        try:
            self._objects.delete(self.prefix)
        finally:
            self._objects.close()

    def leave(self, renew: bool) -> None:
        """Stop renewing, and leave the object: what it names could not be removed, or ends with its cluster."""
        self._closed.set()
        self._thread.join()
        try:
            if renew:
                self._renew()
        finally:
            self._objects.close()

    def _keep(self) -> None:
        pause_s = self.lease_s / RENEWALS_PER_LEASE
        is_told = False  # one line for a cache that stays away
        while not self._closed.wait(pause_s):
            try:
                self._renew()
                is_told = False
            except ClusterError as error:
                level = logging.DEBUG if is_told else logging.WARNING
                _log.log(level, "the lease of %s cannot be renewed: %s", self._identity["run_id"], error)
                is_told = True

    def _renew(self) -> None:
        with self._writing:
            self._count += 1
            with self._lock:
                owned = {kind: sorted(names) for kind, names in self._owned.items()}
            owned["prefixes"] = sorted({*owned["prefixes"], *self._prefixes()})
            record = {**self._identity, **owned, "count": self._count, "renewed": time.time()}
            self._objects.put(self.prefix, pickle.dumps(record), LEASE_NAME)


def plain_name(text: str) -> str:
    """A text as a part of names: letters, digits, `_` and `-`, at most 100. Example: "run 7/x" is "run-7-x"."""
    return _NOT_PLAIN.sub("-", text).strip("-")[:_NAME_CHARS]


def host_name() -> str:
    """Names the machine, its boot and the space that process ids are counted in, as far as the system tells."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid").strip("pid:[]"))
    except OSError:
        pass
    return "/".join(parts)
