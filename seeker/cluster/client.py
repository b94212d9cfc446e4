"""Our small interface on a Flame 0.6 cluster: open, start a service, call, gather, objects, close.

with open_cluster(ClusterSettings(log_dir="logs")) as cluster:
    service = cluster.start("rollouts", "seeker.services.rollout:RolloutService", {"seed": 0}, executors=2)
    calls = [service.call("rollout", [1, 2], deadline_s=60) for _ in range(4)]
    results = [call.result() for call in gather(calls, deadline_s=120)]

A gang is a service whose executors come together or not at all, and work as one:

    service = cluster.start("trainer", "my.services:Trainer", {"lr": 1e-6}, executors=4, gang=True)
    gang = service.form(deadline_s=120)  # every member is set up and has come; gang.executors are in rank order
    try:
        losses = gang.run("update", {"key": "..."}, deadline_s=600)  # all four at once, values in rank order
    except GangLostError as lost:  # rank lost.rank died or hung; the others were ended with it
        gang = service.form(deadline_s=120)  # a new generation, with cold members
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from seeker.cluster import wire
from seeker.cluster.calls import Call, gather
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.gang import Gang
from seeker.cluster.lease import Lease
from seeker.cluster.leftovers import Sweep, release_code, release_objects, unregister
from seeker.cluster.loop import shared_loop
from seeker.cluster.named import Address
from seeker.cluster.objects import FlightObjects, ObjectHandle, ObjectStore
from seeker.cluster.opening import Opener, ServicePlan
from seeker.cluster.resources import parse_resources
from seeker.cluster.service import Service
from seeker.cluster.session import ApplicationPlan
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, ConfigError

__all__ = [
    "Call",
    "Cluster",
    "ClusterSettings",
    "Gang",
    "ObjectHandle",
    "ObjectStore",
    "Service",
    "gather",
    "open_cluster",
]

_log = logging.getLogger("seeker.cluster")

_START_DEADLINE_S = 30.0
_CLOSE_DEADLINE_S = 5.0
_CONTROL_DEADLINE_S = 15.0  # for the small objects that calls and sessions need
_QUIET = {"FLAME_LOG": "warning"}  # the SDK logs three lines a call otherwise
_FAULTS = (ClusterError, OSError)


def open_cluster(settings: ClusterSettings) -> Cluster:
    """Connect to the named cluster, or start the embedded one, which ends with this process."""
    address = settings.address()
    if address is not None:
        return Cluster(settings, address, None)
    embedded = EmbeddedCluster(settings)
    try:
        return connect(settings, embedded.wait_ready(_START_DEADLINE_S), embedded)
    except BaseException:
        embedded.stop()
        raise


def connect(settings: ClusterSettings, address: Address, embedded: EmbeddedCluster) -> Cluster:
    """Connect to an embedded cluster; one that ends meanwhile is an error that says so."""
    try:
        return Cluster(settings, address, embedded)
    except ClusterError as error:
        if embedded.has_ended():
            raise ClusterError(embedded.end_text()) from error
        raise


class Cluster:
    """An open cluster. `close` (or leaving the with block) leaves no session, object or process behind."""

    def __init__(self, settings: ClusterSettings, address: Address, embedded: EmbeddedCluster | None) -> None:
        self.endpoint = address.endpoint
        self.settings = settings
        self._embedded = embedded
        frames = None if embedded is None else embedded.frames
        self._frontend = FrontendClient(address.endpoint, address.ca_file, settings.connect_deadline_s, frames)
        self._flight = FlightObjects(address.cache_endpoint, address.cache_ca_file)
        self._control = FlightObjects(address.cache_endpoint, address.cache_ca_file, _CONTROL_DEADLINE_S)
        self._services: list[Service] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._flight.wait_ready(settings.connect_deadline_s)
            lease_objects = FlightObjects(address.cache_endpoint, address.cache_ca_file, settings.lease_s / 3)
            lease = Lease(lease_objects, settings.run_id, settings.lease_s, self._prefixes)
        except BaseException:
            self._frontend.close()
            raise
        self._opener = Opener(settings, self._frontend, self._control, lease, embedded)
        self._sweep = Sweep(self._frontend, self._control) if embedded is None else None

    @property
    def objects(self) -> ObjectStore:
        return self._flight

    def how_it_ended(self) -> str | None:
        """``the embedded cluster has ended: exit code -9`` with the end of its log, where it has ended by itself."""
        return self._embedded.end_text() if self._embedded is not None and self._embedded.has_ended() else None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def abandoned(self) -> list[str]:
        """Sessions that could not or must not be closed, each with the reason."""
        return list(self._opener.abandoned)

    def start(
        self,
        name: str,
        target: str,
        config: dict[str, Any],
        resources: str = "cpu=1,mem=1g",
        executors: int = 1,
        release_s: int = 120,
        env: dict[str, str] | None = None,
        gang: bool = False,
        elastic: bool = False,
        max_executors: int | None = None,
    ) -> Service:
        """Start `executors` processes for the class that `target` ("package.module:Class") names.

        Each sets up the class in a child process at its first call: ``Class(config, ServiceContext)``. An executor
        idle for `release_s` is given back and comes up cold again. `gang`: all executors together or none, called
        through `Service.form`. `elastic`: from `executors` up to `max_executors` while calls wait.
        """
        if self._closed:
            raise ClusterError(f"service {name}: the cluster {self.endpoint} was closed here")
        _check_kind(name, gang, elastic, max_executors)
        environment = {**_QUIET, **(env or {})}
        application = ApplicationPlan(self.settings.executor_python(), tuple(sorted(environment.items())), release_s)
        maximum = executors if max_executors is None else max_executors
        plan = ServicePlan(name, target, config, application, parse_resources(resources), executors, maximum, gang)
        plan.check()
        try:
            service = Service(plan, self._opener, on_close=self._forget)
        except ClusterError as error:
            if ended := self.how_it_ended():
                raise ClusterError(f"service {name}: {ended}") from error
            raise
        with self._lock:
            self._services.append(service)
        return service

    def describe(self) -> dict[str, Any]:
        """Versions, endpoint and nodes, for run.json."""
        nodes = self._frontend.request("ListNodes", wire.frontend.ListNodesRequest()).nodes
        return {
            "kind": "embedded" if self._embedded is not None else "flame",
            "endpoint": self.endpoint,
            "cache_endpoint": self._flight.endpoint,
            "executor_python": self.settings.executor_python(),
            "versions": {package: version(package) for package in ("flamepy", "grpcio", "pyarrow")},
            "nodes": [
                {
                    "name": node.metadata.name,
                    "cpu": node.status.capacity.cpu,
                    "gpu": node.status.capacity.gpu,
                    "memory_bytes": node.status.capacity.memory,
                }
                for node in nodes
            ],
        }

    def executors(self) -> list[dict[str, Any]]:
        """Executors as the cluster lists them: id, session, state number."""
        listed = self._frontend.request("ListExecutor", wire.frontend.ListExecutorRequest()).executors
        return [
            {"id": each.metadata.id, "session": each.status.session_id, "state": each.status.state} for each in listed
        ]

    def close(self) -> None:
        """Close all services, delete objects and applications, end the embedded cluster. Every part is tried."""
        if self._closed:
            return
        self._closed = True
        faults: list[str] = []
        try:
            self._try(faults, self._close_services)
            if self._sweep is not None:
                self._sweep.close()
                self._try(faults, lambda: self._control.wait_ready(_CLOSE_DEADLINE_S))
                if not faults:
                    self._remove_own(faults)
            self._end_lease(faults)
        finally:
            shared_loop().wait(self._opener.close())
            self._frontend.close()
            self._control.close()
            self._flight.close()
            if self._embedded is not None:
                self._embedded.stop()
        for fault in (*faults, *self.abandoned):
            _log.warning("closing the cluster %s: %s", self.endpoint, fault)

    def _prefixes(self) -> list[str]:
        """Where we have put objects, by now."""
        return sorted({*self._flight.prefixes, *self._control.prefixes})

    def _close_services(self) -> None:
        with self._lock:
            services = list(self._services)
        patient = self._embedded is None
        shared_loop().wait(_all(*(service.closing(patient) for service in services)))

    def _remove_own(self, faults: list[str]) -> None:
        key = self._opener.lease.key
        self._try(faults, lambda: release_objects(self._control, key, self._prefixes()))
        for application in sorted(self._opener.applications):
            self._try(faults, lambda application=application: unregister(self._frontend, application))
        self._try(faults, lambda: release_code(self._control, key, self._opener.code()))

    def _end_lease(self, faults: list[str]) -> None:
        """It stays where it names what could not be removed."""
        lease = self._opener.lease
        if self._embedded is not None or faults or self.abandoned:
            self._try(faults, lambda: lease.leave(renew=self._embedded is None))
        else:
            self._try(faults, lease.close)

    def _try(self, faults: list[str], work: Any) -> None:
        try:
            work()
        except _FAULTS as error:
            faults.append(str(error))

    def _forget(self, service: Service) -> None:
        with self._lock:
            if service in self._services:
                self._services.remove(service)


async def _all(*closings: Coroutine[Any, Any, None]) -> None:
    """All at once; the first error is raised when every one has ended."""
    errors = [each for each in await asyncio.gather(*closings, return_exceptions=True) if each is not None]
    if errors:
        raise errors[0]


def _check_kind(name: str, gang: bool, elastic: bool, max_executors: int | None) -> None:
    if gang and elastic:
        raise ConfigError(f"service {name}: a gang has a fixed size; choose gang or elastic")
    if elastic and max_executors is None:
        raise ConfigError(f"service {name}: elastic needs max_executors, since the cluster sets no limit of its own")
    if max_executors is not None and not elastic:
        raise ConfigError(f"service {name}: max_executors is {max_executors}, which only elastic=True uses")
