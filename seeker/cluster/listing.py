"""What a cluster tells about itself, as plain values: nodes, applications, sessions, executors, objects."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from seeker.cluster import wire
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.objects import FlightObjects
from seeker.cluster.resources import Resources, resources_of


@dataclass(frozen=True, slots=True)
class NodeState:
    """Example: ``NodeState("lab-1", True, Resources(16, 64 * 2**30, 1), Resources(14, 60 * 2**30, 0), 1.7e9)``."""

    name: str
    is_ready: bool
    capacity: Resources
    free: Resources
    heartbeat_s: float  # Unix time


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session; `events` are codes and texts, oldest first.

    Example: ``SessionState("run-7-trainer-5b2c", "seeker-1f", True, Resources(), 2, 2, 2, 1, 0, 5, 0, ())``.
    """

    id: str
    application: str
    is_open: bool
    wanted: Resources
    minimum: int
    maximum: int | None
    batch: int
    pending: int
    running: int
    succeeded: int
    failed: int
    events: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """Example: ``ExecutorState("b1f0…", "lab-1", "run-7-trainer-5b2c", "Bound", Resources(cpu=1))``."""

    id: str
    node: str
    session: str
    state: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """Objects of one ``<app>/<session>``; a real cache does not tell bytes.

    Example: ``ObjectCount("seeker-1f/run-7-trainer-5b2c", 12, 4096, 0)``.
    """

    prefix: str
    num_objects: int
    memory_bytes: int | None = None
    spilled_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at a cluster."""

    endpoint: str
    cache_endpoint: str
    nodes: tuple[NodeState, ...] = ()
    applications: tuple[str, ...] = ()
    sessions: tuple[SessionState, ...] = ()
    executors: tuple[ExecutorState, ...] = ()
    objects: tuple[ObjectCount, ...] = ()
    is_local: bool = False  # the embedded cluster, whose cache tells bytes

    def executors_of(self, session_id: str) -> list[ExecutorState]:
        return [executor for executor in self.executors if executor.session == session_id]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look(frontend: FrontendClient, objects: FlightObjects) -> Listing:
    """Ask the cluster. Every request has its own deadline; a cluster that does not answer is a `ClusterError`."""
    messages = wire.frontend
    counts, is_local = _objects(objects)
    return Listing(
        endpoint=frontend.endpoint,
        cache_endpoint=objects.endpoint,
        nodes=tuple(map(_node, frontend.request("ListNodes", messages.ListNodesRequest()).nodes)),
        applications=tuple(
            sorted(
                each.metadata.name
                for each in frontend.request("ListApplication", messages.ListApplicationRequest()).applications
            )
        ),
        sessions=tuple(map(_session, frontend.request("ListSession", messages.ListSessionRequest()).sessions)),
        executors=tuple(map(_executor, frontend.request("ListExecutor", messages.ListExecutorRequest()).executors)),
        objects=counts,
        is_local=is_local,
    )


def _node(message: Any) -> NodeState:
    status = message.status
    return NodeState(
        name=message.metadata.name,
        is_ready=status.state == wire.NODE_READY,
        capacity=resources_of(status.capacity),
        free=resources_of(status.allocatable),
        heartbeat_s=float(status.last_heartbeat_time) or time.time(),
    )


def _session(message: Any) -> SessionState:
    spec, status = message.spec, message.status
    return SessionState(
        id=message.metadata.id,
        application=spec.application,
        is_open=status.state == wire.SESSION_OPEN,
        wanted=resources_of(spec.resreq),
        minimum=spec.min_instances,
        maximum=spec.max_instances if spec.HasField("max_instances") else None,
        batch=spec.batch_size or 1,
        pending=status.pending,
        running=status.running,
        succeeded=status.succeed,
        failed=status.failed,
        events=tuple((event.code, event.message) for event in status.events),
    )


def _executor(message: Any) -> ExecutorState:
    number: int = message.status.state
    return ExecutorState(
        id=message.metadata.id,
        node=message.spec.node,
        session=message.status.session_id,
        state=wire.EXECUTOR_STATES[number],
        resources=resources_of(message.spec.resreq),
    )


def _objects(objects: FlightObjects) -> tuple[tuple[ObjectCount, ...], bool]:
    told = objects.statistics()
    if told is not None:
        return tuple(ObjectCount(prefix, **numbers) for prefix, numbers in sorted(told.items())), True
    counts = Counter(key.rpartition("/")[0] for key in objects.keys())  # noqa: SIM118 (not a dict)
    return tuple(ObjectCount(prefix, number) for prefix, number in sorted(counts.items())), False
