"""What the embedded cluster keeps: applications, sessions and tasks, each with its own transitions.

Used on the server's event loop only. Specs are kept as the protobuf messages that clients sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster import wire
from seeker.cluster.local.history import History

MAX_BIND_FAILURES = 5
MAX_EVENTS = 64  # of a session: older ones are forgotten
_STATE_NAMES = ("pending", "running", "succeeded", "failed", "cancelled")


class StateError(Exception):
    """A request that the rules refuse. `status` is a gRPC status name."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


def now_ms() -> int:
    return int(time.time() * 1000)


def new_event(code: int, message: str) -> Any:
    return wire.types.Event(code=code, message=message, creation_time=now_ms())


def _wake(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)


@dataclass(slots=True, eq=False)
class TaskRecord:
    """One call: pending, running, then succeeded, failed or cancelled for good; an event for each."""

    id: int
    session_id: str
    input: bytes | None
    state: int = wire.TASK_PENDING
    output: bytes | None = None
    events: list[Any] = field(default_factory=list[Any])
    created_ms: int = field(default_factory=now_ms)
    completed_ms: int | None = None
    watchers: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])

    def __post_init__(self) -> None:
        self._record(None)

    def move(self, state: int, output: bytes | None = None, message: str | None = None) -> None:
        """Enter `state` and wake the watchers."""
        self.state = state
        if state in wire.TASK_TERMINAL:
            self.output = output
            self.completed_ms = now_ms()
        self._record(message)
        self.wake()

    def _record(self, message: str | None) -> None:
        self.events.append(new_event(self.state, message or f"the task is {_STATE_NAMES[self.state]}"))

    def wake(self) -> None:
        for watcher in self.watchers:
            _wake(watcher)
        self.watchers.clear()

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait for the next change of state, or for the end of its session."""
        loop = asyncio.get_running_loop()
        watcher: asyncio.Future[None] = loop.create_future()
        self.watchers.append(watcher)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, watcher)
        try:
            await watcher
        finally:
            if timer is not None:
                timer.cancel()
            if watcher in self.watchers:
                self.watchers.remove(watcher)

    def to_wire(self, with_events: bool = True) -> Any:
        spec = wire.types.TaskSpec(session_id=self.session_id, input=self.input, output=self.output)
        status = wire.types.TaskStatus(
            state=self.state,
            creation_time=self.created_ms,
            completion_time=self.completed_ms,
            events=self.events if with_events else (),
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
    history: History = field(default_factory=History)
    takers: deque[asyncio.Future[TaskRecord | None]] = field(default_factory=deque["asyncio.Future[TaskRecord | None]"])
    counts: list[int] = field(default_factory=lambda: [0] * 5)  # tasks by state
    events: list[Any] = field(default_factory=list[Any])
    bind_failures: int = 0
    crashes: int = 0  # processes in a row that ended before their first call
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
            for forgotten in self.history.finished(task.id, len(task.input or b"") + len(output or b"")):
                del self.tasks[forgotten]

    def told(self, task: TaskRecord) -> None:
        """Somebody was told the task's state: a finished one may be forgotten from now on."""
        self.history.read(task.id)

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
        self.events = [*self.events[1 - MAX_EVENTS :], new_event(wire.BIND_FAILED, message)]
        if self.given_up:
            text = f"session <{self.id}> reached the bind retry limit of {MAX_BIND_FAILURES}"
            self.events.append(new_event(wire.BIND_GIVEN_UP, text))
