"""What the embedded cluster knows: applications, sessions and tasks, and how they change.

Runs on the server's event loop only. Specs are kept as the protobuf messages that clients sent.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster import wire

MAX_BIND_FAILURES = 5
KEPT_FINISHED_TASKS = 2048  # per session; older finished tasks are forgotten, so that memory stays flat
DEFAULT_MAX_INSTANCES = 1_000_000
DEFAULT_DELAY_RELEASE_S = 60
DEFAULT_MEMORY_BYTES = 2**30

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


class StateError(Exception):
    """A request that the rules refuse. `status` is a gRPC status name."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


def now_ms() -> int:
    return int(time.time() * 1000)


def new_event(code: int, message: str) -> Any:
    return wire.types.Event(code=code, message=message, creation_time=now_ms())


@dataclass(slots=True, eq=False)
class TaskRecord:
    """One call: pending, running, then succeeded, failed or cancelled for good."""

    id: int
    session_id: str
    input: bytes | None
    state: int = wire.TASK_PENDING
    output: bytes | None = None
    events: list[Any] = field(default_factory=list[Any])
    created_ms: int = field(default_factory=now_ms)
    completed_ms: int | None = None
    watchers: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])

    def move(self, state: int, output: bytes | None = None, message: str | None = None) -> None:
        """Enter `state` and wake the watchers."""
        self.state = state
        if state in wire.TASK_TERMINAL:
            self.output = output
            self.completed_ms = now_ms()
        if message is not None:
            self.events.append(new_event(state, message))
        self.wake()

    def wake(self) -> None:
        for watcher in self.watchers:
            if not watcher.done():
                watcher.set_result(None)
        self.watchers.clear()

    def changed(self) -> asyncio.Future[None]:
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watchers.append(watcher)
        return watcher

    def to_wire(self) -> Any:
        spec = wire.types.TaskSpec(session_id=self.session_id, input=self.input, output=self.output)
        status = wire.types.TaskStatus(
            state=self.state, creation_time=self.created_ms, completion_time=self.completed_ms, events=self.events
        )
        metadata = wire.types.Metadata(id=str(self.id), name=str(self.id))
        return wire.types.Task(metadata=metadata, spec=spec, status=status)


@dataclass(slots=True, eq=False)
class ApplicationRecord:
    """A registered application; `serial` is new at every registration, so that old packages are never rerun."""

    name: str
    spec: Any
    serial: int
    created_ms: int = field(default_factory=now_ms)

    def to_wire(self) -> Any:
        status = wire.types.ApplicationStatus(state=0, creation_time=self.created_ms)
        metadata = wire.types.Metadata(id=self.name, name=self.name)
        return wire.types.Application(metadata=metadata, spec=self.spec, status=status)


@dataclass(slots=True, eq=False)
class SessionRecord:
    """A session: its queue, the executors waiting for work, and its bind failures."""

    id: str
    spec: Any
    application: ApplicationRecord
    state: int = wire.SESSION_OPEN
    created_ms: int = field(default_factory=now_ms)
    completed_ms: int | None = None
    tasks: dict[int, TaskRecord] = field(default_factory=dict[int, TaskRecord])
    pending: deque[TaskRecord] = field(default_factory=deque[TaskRecord])
    finished: deque[int] = field(default_factory=deque[int])
    takers: deque[asyncio.Future[TaskRecord | None]] = field(default_factory=deque["asyncio.Future[TaskRecord | None]"])
    counts: list[int] = field(default_factory=lambda: [0] * 5)  # tasks by state
    events: list[Any] = field(default_factory=list[Any])
    bind_failures: int = 0
    next_task_id: int = 1

    @property
    def is_open(self) -> bool:
        return self.state == wire.SESSION_OPEN

    @property
    def given_up(self) -> bool:
        return self.bind_failures >= MAX_BIND_FAILURES

    def to_wire(self) -> Any:
        counts = self.counts
        status = wire.types.SessionStatus(
            state=self.state,
            creation_time=self.created_ms,
            completion_time=self.completed_ms,
            pending=counts[wire.TASK_PENDING],
            running=counts[wire.TASK_RUNNING],
            succeed=counts[wire.TASK_SUCCEED],
            failed=counts[wire.TASK_FAILED],
            cancelled=counts[wire.TASK_CANCELLED],
            events=self.events,
        )
        metadata = wire.types.Metadata(id=self.id, name=self.id)
        return wire.types.Session(metadata=metadata, spec=self.spec, status=status)

    def submit(self, data: bytes | None) -> TaskRecord:
        if not self.is_open:
            raise StateError("INVALID_ARGUMENT", f"session <{self.id}> is not open")
        task = TaskRecord(self.next_task_id, self.id, data)
        self.next_task_id += 1
        self.tasks[task.id] = task
        self.counts[wire.TASK_PENDING] += 1
        self.pending.append(task)
        self._hand_out()
        return task

    def move(self, task: TaskRecord, state: int, output: bytes | None = None, message: str | None = None) -> None:
        """Change a task's state, keep the counters, forget what is old."""
        self.counts[task.state] -= 1
        self.counts[state] += 1
        task.move(state, output, message)
        if state in wire.TASK_TERMINAL:
            self.finished.append(task.id)
            if len(self.finished) > KEPT_FINISHED_TASKS:
                del self.tasks[self.finished.popleft()]

    def take(self) -> asyncio.Future[TaskRecord | None]:
        """The next task for an executor; None when the session is closed. `give_back` when it is not wanted."""
        taker: asyncio.Future[TaskRecord | None] = asyncio.get_running_loop().create_future()
        self.takers.append(taker)
        self._hand_out()
        return taker

    def give_back(self, taker: asyncio.Future[TaskRecord | None]) -> None:
        """An executor stops waiting; a task that it was just handed goes back to the front of the queue."""
        if not taker.done():
            taker.cancel()
            return
        task = taker.result()
        if task is not None and task.state == wire.TASK_PENDING:
            self.pending.appendleft(task)
            self._hand_out()

    def _hand_out(self) -> None:
        while self.takers and (self.pending or not self.is_open):
            taker = self.takers.popleft()
            if not taker.done():
                taker.set_result(self.pending.popleft() if self.pending else None)

    def close(self) -> None:
        if not self.is_open:
            return
        if self.counts[wire.TASK_RUNNING]:
            raise StateError("INTERNAL", "Cannot close session with running tasks")
        self.state, self.completed_ms = wire.SESSION_CLOSED, now_ms()
        for task in [task for task in self.tasks.values() if task.state == wire.TASK_PENDING]:
            self.move(task, wire.TASK_CANCELLED)
        self.pending.clear()
        self._hand_out()

    def bind_failed(self, message: str) -> None:
        """Record a bind failure; at the limit the session never gets another executor."""
        if self.given_up:
            return
        self.bind_failures += 1
        self.events.append(new_event(wire.BIND_FAILED, message))
        if self.given_up:
            text = f"session <{self.id}> reached the bind retry limit of {MAX_BIND_FAILURES}"
            self.events.append(new_event(wire.BIND_GIVEN_UP, text))


class State:
    """All applications and sessions, with the rules of registering, opening and closing."""

    def __init__(self) -> None:
        self.applications: dict[str, ApplicationRecord] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self._serial = 0

    def register(self, name: str, spec: Any, update: bool = False) -> None:
        if not _NAME.fullmatch(name) or ".." in name:
            raise StateError("INVALID_ARGUMENT", f"application name {name!r}: 1 to 253 of A-Z a-z 0-9 . _ -")
        if update and name not in self.applications:
            raise StateError("NOT_FOUND", f"application <{name}> not found")
        if spec.HasField("working_directory") and spec.working_directory and spec.working_directory[0] != "/":
            raise StateError("INVALID_ARGUMENT", f"working_directory {spec.working_directory!r} is not absolute")
        stored = wire.types.ApplicationSpec()
        stored.CopyFrom(spec)
        if not stored.HasField("max_instances"):
            stored.max_instances = DEFAULT_MAX_INSTANCES
        if not stored.HasField("delay_release"):
            stored.delay_release = DEFAULT_DELAY_RELEASE_S
        self._serial += 1
        self.applications[name] = ApplicationRecord(name, stored, self._serial)

    def unregister(self, name: str) -> None:
        self.application(name)
        if any(session.is_open and session.spec.application == name for session in self.sessions.values()):
            raise StateError("INTERNAL", f"application <{name}> has open sessions")
        del self.applications[name]
        for session_id in [key for key, session in self.sessions.items() if session.spec.application == name]:
            self.delete_session(session_id)

    def application(self, name: str) -> ApplicationRecord:
        if name not in self.applications:
            raise StateError("NOT_FOUND", f"application <{name}> not found")
        return self.applications[name]

    def session(self, session_id: str) -> SessionRecord:
        if session_id not in self.sessions:
            raise StateError("NOT_FOUND", f"session <{session_id}> not found")
        return self.sessions[session_id]

    def task(self, session_id: str, task_id: str) -> TaskRecord:
        task = self.session(session_id).tasks.get(int(task_id) if task_id.isdecimal() else -1)
        if task is None:
            raise StateError("NOT_FOUND", f"task <{session_id}/{task_id}> not found")
        return task

    def create_session(self, session_id: str, spec: Any) -> SessionRecord:
        if session_id in self.sessions:
            raise StateError("ALREADY_EXISTS", f"session <{session_id}> already exists")
        if not session_id:
            raise StateError("INVALID_ARGUMENT", "session id is empty")
        application = self.application(spec.application)
        stored = _resolved(spec)
        _check_instances(stored)
        session = SessionRecord(session_id, stored, application)
        self.sessions[session_id] = session
        return session

    def open_session(self, session_id: str, spec: Any | None) -> tuple[SessionRecord, bool]:
        """The session, and whether it was made by this call."""
        if session_id not in self.sessions and spec is not None:
            return self.create_session(session_id, spec), True
        session = self.session(session_id)
        if not session.is_open:
            raise StateError("INVALID_ARGUMENT", f"session {session_id} is not open")
        if spec is not None and _compared(_resolved(spec)) != _compared(session.spec):
            raise StateError("INVALID_ARGUMENT", f"session <{session_id}> exists with another specification")
        return session, False

    def delete_session(self, session_id: str) -> SessionRecord:
        session = self.session(session_id)
        if session.is_open:
            raise StateError("INVALID_ARGUMENT", f"session <{session_id}> is open; close it first")
        del self.sessions[session_id]
        for task in session.tasks.values():
            task.wake()  # their watch streams end without a terminal state
        return session


def _resolved(spec: Any) -> Any:
    stored = wire.types.SessionSpec()
    stored.CopyFrom(spec)
    stored.batch_size = stored.batch_size or 1
    if not stored.HasField("resreq"):
        stored.resreq.CopyFrom(wire.types.ResourceRequirement(cpu=1, memory=DEFAULT_MEMORY_BYTES))
    return stored


def _compared(spec: Any) -> tuple[object, ...]:
    maximum = spec.max_instances if spec.HasField("max_instances") else None
    resources = (spec.resreq.cpu, spec.resreq.memory, spec.resreq.gpu)
    return spec.application, resources, spec.min_instances, maximum, spec.batch_size, spec.priority


def _check_instances(spec: Any) -> None:
    batch, minimum = spec.batch_size, spec.min_instances
    maximum = spec.max_instances if spec.HasField("max_instances") else None
    if minimum % batch or (maximum is not None and maximum % batch):
        raise StateError("INVALID_ARGUMENT", f"min_instances and max_instances must be multiples of {batch=}")
    if maximum is not None and maximum < minimum:
        raise StateError("INVALID_ARGUMENT", f"max_instances {maximum} is below min_instances {minimum}")
