"""Our small interface on a Flame 0.6 cluster: open, start a service, call, gather, objects, close.

with open_cluster(ClusterSettings(log_dir="logs")) as cluster:
    service = cluster.start("rollouts", "seeker.services.rollout:RolloutService", {"seed": 0}, executors=2)
    calls = [service.call("rollout", [1, 2], deadline_s=60) for _ in range(4)]
    results = [call.result() for call in gather(calls, deadline_s=120)]
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from importlib.metadata import version
from typing import Any

from seeker.cluster import wire
from seeker.cluster.calls import Call, gather
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.frontend import FrontendClient, RefusedError
from seeker.cluster.named import Address
from seeker.cluster.objects import FlightObjects, ObjectHandle, ObjectStore
from seeker.cluster.resources import Resources, parse_resources, resources_of
from seeker.cluster.service import Service
from seeker.cluster.session import CANCEL_NAME, CONTEXT_NAME, ApplicationPlan, SessionPlan, runner_context
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, ConfigError

__all__ = ["Call", "Cluster", "ClusterSettings", "ObjectHandle", "ObjectStore", "Service", "gather", "open_cluster"]

_log = logging.getLogger("seeker.cluster")

_START_DEADLINE_S = 30.0
_REGISTRATION_TRIES = 3
_QUIET = {"FLAME_LOG": "warning"}  # the SDK logs three lines a call otherwise
_FAULTS = (ClusterError, OSError)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")


def open_cluster(settings: ClusterSettings) -> Cluster:
    """Connect to the named cluster, or start the embedded one, which ends with this process."""
    address = settings.address()
    if address is not None:
        return Cluster(settings, address, None)
    embedded = EmbeddedCluster(settings)
    try:
        return Cluster(settings, embedded.wait_ready(_START_DEADLINE_S), embedded)
    except BaseException:
        embedded.stop()
        raise


class Cluster:
    """An open cluster. `close` (or leaving the with block) leaves no session, object or process behind."""

    def __init__(self, settings: ClusterSettings, address: Address, embedded: EmbeddedCluster | None) -> None:
        self.endpoint = address.endpoint
        self.settings = settings
        self._embedded = embedded
        self._frontend = FrontendClient(address.endpoint, address.ca_file, settings.connect_deadline_s)
        self._flight = FlightObjects(address.cache_endpoint, address.cache_ca_file)
        self._services: list[Service] = []
        self._applications: set[str] = set()
        self._lock = threading.Lock()
        try:
            self._flight.wait_ready(settings.connect_deadline_s)
        except BaseException:
            self._frontend.close()
            raise

    @property
    def objects(self) -> ObjectStore:
        return self._flight

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> Service:
        """Start `executors` processes for the class that `target` ("package.module:Class") names.

        Each sets up the class in a child process at its first call: ``Class(config, ServiceContext)``. An executor
        idle for `release_s` is given back and comes up cold again. `gang`: all executors together or none.
        """
        _check_start(name, target, executors)
        wanted = parse_resources(resources)
        self._check_capacity(name, wanted, executors)
        environment = {**_QUIET, **(env or {})}
        application = ApplicationPlan(self.settings.executor_python(), tuple(sorted(environment.items())), release_s)
        session_id = _session_id(self.settings.run_id, name)
        plan = SessionPlan(session_id, application.name, wanted, executors, executors, gang)
        context = self._put_context(name, target, config, plan)
        self._open_session(application, plan, context)
        service = Service(
            name,
            plan,
            self._frontend,
            self._flight,
            embedded=self._embedded,
            on_close=self._forget,
        )
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
        faults: list[str] = []
        with self._lock:
            services = list(self._services)
        for service in services:
            self._try(faults, lambda service=service: service.close(patient=self._embedded is None))
        if self._embedded is None:
            for prefix in sorted(self._flight.prefixes):
                self._try(faults, lambda prefix=prefix: self._flight.delete(prefix))
            for application in sorted(self._applications):
                self._try(faults, lambda application=application: self._unregister(application))
        self._frontend.close()
        self._flight.close()
        if self._embedded is not None:
            self._embedded.stop()
        for fault in faults:
            _log.warning("closing the cluster %s: %s", self.endpoint, fault)

    def _try(self, faults: list[str], work: Any) -> None:
        try:
            work()
        except _FAULTS as error:
            faults.append(str(error))

    def _forget(self, service: Service) -> None:
        with self._lock:
            if service in self._services:
                self._services.remove(service)

    def _put_context(self, name: str, target: str, config: dict[str, Any], plan: SessionPlan) -> ObjectHandle:
        log_dir = self._embedded.log_dir if self._embedded is not None else self.settings.log_dir
        setup = {
            "name": name,
            "target": target,
            "config": config,
            "prefix": plan.prefix,
            "code_root": self.settings.resolved_code_root(),
            "log_dir": log_dir,
            "cache_endpoint": self._flight.endpoint,
            "cancel_key": f"{plan.prefix}/{CANCEL_NAME}",
        }
        try:
            json.dumps(setup)
        except TypeError as error:
            raise ConfigError(f"config of service {name}: {error}; it travels as JSON") from error
        return self._flight.put(plan.prefix, runner_context(setup), CONTEXT_NAME)

    def _open_session(self, application: ApplicationPlan, plan: SessionPlan, context: ObjectHandle) -> None:
        """Another run that shares the application may unregister it between our two requests: then once more."""
        for attempt in range(_REGISTRATION_TRIES):
            reply = self._frontend.request("RegisterApplication", application.to_wire())
            if reply.return_code != 0 and "already exists" not in reply.message:
                raise ClusterError(f"application {application.name} was not registered: {reply.message}")
            self._applications.add(application.name)
            try:
                self._frontend.request("OpenSession", plan.to_wire(context))
                return
            except RefusedError as error:
                if error.status != "NOT_FOUND" or attempt == _REGISTRATION_TRIES - 1:
                    raise

    def _unregister(self, name: str) -> None:
        """Refused while another run's sessions use the same environment: then it is theirs to unregister."""
        reply = self._frontend.request("UnregisterApplication", wire.frontend.UnregisterApplicationRequest(name=name))
        if reply.return_code != 0:
            _log.info("application %s stays registered: %s", name, reply.message)

    def _check_capacity(self, name: str, wanted: Resources, executors: int) -> None:
        """The engine neither refuses nor reports a request that no node can meet."""
        nodes = self._frontend.request("ListNodes", wire.frontend.ListNodesRequest()).nodes
        capacities = [resources_of(each.status.capacity) for each in nodes]
        if sum(_num_fitting(capacity, wanted) for capacity in capacities) < executors:
            have = "; ".join(str(capacity) for capacity in capacities) or "no node"
            raise ClusterError(
                f"service {name} asks for {executors} executors of {wanted}, the cluster has {have}; "
                "lower the request or raise cluster.slots"
            )


def _session_id(run_id: str, name: str) -> str:
    """Unique, names the run, fits the engine's rules for names and its 128 characters."""
    plain = _NOT_PLAIN.sub("-", f"{run_id}-{name}").strip("-")[:100]
    return f"{plain}-{secrets.token_hex(4)}"


def _num_fitting(capacity: Resources, each: Resources) -> int:
    counts = [capacity.cpu // max(each.cpu, 1), capacity.memory_bytes // max(each.memory_bytes, 1)]
    if each.gpu:
        counts.append(capacity.gpu // each.gpu)
    return min(counts)


def _check_start(name: str, target: str, executors: int) -> None:
    module, _, class_name = target.partition(":")
    if not module or not class_name:
        raise ConfigError(f"service {name}: target {target!r} is not package.module:Class")
    if executors < 1:
        raise ConfigError(f"service {name}: executors is {executors}, expected 1 or more")
