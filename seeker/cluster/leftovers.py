"""What crashed drivers left on a cluster that others share: found by their leases, and removed.

A lease has lapsed when its process is known to be dead (same host), or when it was not renewed for its own `lease_s`
while we looked. What no lapsed lease names is never touched.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from seeker.cluster import wire
from seeker.cluster.frontend import FrontendClient, RefusedError
from seeker.cluster.lease import LEASE_APPLICATION, LEASE_NAME, host_name
from seeker.cluster.local.reaper import start_time
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.cluster.opened import OpenSession
from seeker.cluster.resources import Resources
from seeker.cluster.session import SessionPlan
from seeker.cluster.shipping import CODE_PREFIX
from seeker.errors import ClusterError, ObjectMissingError

_log = logging.getLogger("seeker.cluster")

_LOOK_S = 1.0
_REMEDY = "restart the cluster's session manager soon: nobody keeps that session's executors from being released"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A driver's lease as others read it.

    Example: ``LeaseRecord("seeker-leases/demo-5f0a/lease", 7, "demo", "box/1f/4026", 4711, "90210", 30.0,
    ("demo-trainer-0c",), ("seeker-1f",), ("seeker-1f/demo-trainer-0c",), ("77aa",), ())``.
    """

    key: str
    count: int
    run_id: str
    host: str
    pid: int
    pid_started: str
    lease_s: float
    sessions: tuple[str, ...]
    applications: tuple[str, ...]
    prefixes: tuple[str, ...]
    code: tuple[str, ...]
    abandoned: tuple[str, ...]

    def is_known_dead(self) -> bool:
        """Its process was on this host and is there no more."""
        return self.host == host_name() and bool(self.pid_started) and start_time(self.pid) != self.pid_started

    def text(self) -> str:
        return f"run {self.run_id} (process {self.pid} on {self.host.partition('/')[0]})"


def read_leases(objects: FlightObjects) -> list[LeaseRecord]:
    """All leases that are in the cache."""
    records: list[LeaseRecord] = []
    keys = objects.keys()
    for key in keys:
        if key.startswith(f"{LEASE_APPLICATION}/") and key.endswith(f"/{LEASE_NAME}"):
            try:
                records.append(_record(key, pickle.loads(objects.get(ObjectHandle(key, 0, objects.endpoint)))))
            except ObjectMissingError:
                continue  # its driver has just closed
    return records


def find_leftovers(objects: FlightObjects, stop: threading.Event | None = None) -> Iterator[LeaseRecord]:
    """Leases that have lapsed, as that becomes known: some at once, others after their own `lease_s`.

    `stop` ends the waiting.
    """
    stop = stop or threading.Event()
    waiting: dict[str, LeaseRecord] = {}
    for record in read_leases(objects):
        if record.is_known_dead():
            yield record
        else:
            waiting[record.key] = record
    start = time.monotonic()
    while waiting and not stop.wait(_LOOK_S):
        now = {record.key: record for record in read_leases(objects)}
        waiting = {key: each for key, each in waiting.items() if key in now and now[key].count == each.count}
        for record in [each for each in waiting.values() if time.monotonic() - start > each.lease_s]:
            del waiting[record.key]
            yield record


def clean(frontend: FrontendClient, objects: FlightObjects, record: LeaseRecord) -> list[str]:
    """Remove what a lapsed lease names, the lease last; what could not be removed, each with its reason.

    Sessions that the driver itself had abandoned are left: closing them bricks a real cluster.
    """
    faults: list[str] = []
    for session_id in record.sessions:
        if not _is_open(frontend, session_id):
            continue
        if session_id in record.abandoned:
            faults.append(f"session {session_id} of {record.text()} was abandoned by its driver and is left as it is")
            continue
        prefix = next((each for each in record.prefixes if each.endswith(f"/{session_id}")), f"-/{session_id}")
        plan = SessionPlan(session_id, prefix.partition("/")[0], Resources(), 1, 1, False)
        session = OpenSession(plan, frontend, objects, None)
        shared_loop().wait(session.close(patient=True, cancel=True))
        if session.given_up:
            faults.append(f"session {session_id} of {record.text()} is left: {session.given_up}; {_REMEDY}")
    left = tuple(each for each in record.sessions if any(f"session {each} " in fault for fault in faults))
    release_objects(objects, record.key, [each for each in record.prefixes if not each.endswith(left or ("//",))])
    for application in record.applications:
        unregister(frontend, application)
    if not faults:
        release_code(objects, record.key, record.code)
        objects.delete(record.key)
    return faults


def _is_open(frontend: FrontendClient, session_id: str) -> bool:
    try:
        session = frontend.request("GetSession", wire.frontend.GetSessionRequest(session_id=session_id))
    except RefusedError as error:
        if error.status != "NOT_FOUND":
            raise
        return False
    return session.status.state == wire.SESSION_OPEN


def unregister(frontend: FrontendClient, application: str) -> None:
    """Refused while another run's sessions use the same environment: then it is theirs to unregister."""
    reply = frontend.request("UnregisterApplication", wire.frontend.UnregisterApplicationRequest(name=application))
    if reply.return_code != 0:
        _log.info("application %s stays registered: %s", application, reply.message)


def release_objects(objects: FlightObjects, own_key: str, prefixes: Iterable[str]) -> None:
    """Delete what is under prefixes that no other lease names; archives of code are for `release_code`."""
    used = {prefix for record in read_leases(objects) if record.key != own_key for prefix in record.prefixes}
    for prefix in prefixes:
        if prefix not in used and not prefix.startswith(f"{CODE_PREFIX}/"):
            objects.delete(prefix)


def release_code(objects: FlightObjects, own_key: str, digests: tuple[str, ...]) -> None:
    """Delete the archives that no other lease names."""
    used = {digest for record in read_leases(objects) if record.key != own_key for digest in record.code}
    for digest in digests:
        if digest not in used:
            objects.delete(f"{CODE_PREFIX}/{digest}")


class Sweep:
    """Removes leftovers in the background; `close` waits for what it is doing, not for leases to lapse."""

    def __init__(self, frontend: FrontendClient, objects: FlightObjects) -> None:
        self._frontend = frontend
        self._objects = objects
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seeker-sweep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for record in find_leftovers(self._objects, self._stop):
                _log.warning("removing what %s left on the cluster: %s", record.text(), ", ".join(record.sessions))
                for fault in clean(self._frontend, self._objects, record):
                    _log.warning("%s", fault)
        except ClusterError as error:
            _log.warning("leftovers of other runs were not removed: %s", error)


def _record(key: str, told: dict[str, Any]) -> LeaseRecord:
    names = ("sessions", "applications", "prefixes", "code", "abandoned")
    owned: dict[str, Any] = {name: tuple(told.get(name, ())) for name in names}
    plain: dict[str, Any] = {name: told[name] for name in ("count", "run_id", "host", "pid", "pid_started", "lease_s")}
    return LeaseRecord(key, **plain, **owned)
