"""The rules of registering applications and of creating, opening, closing and deleting sessions."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

from seeker.cluster import wire
from seeker.cluster.local.records import ApplicationRecord, SessionRecord, StateError, TaskRecord

DEFAULT_MAX_INSTANCES = 1_000_000
DEFAULT_DELAY_RELEASE_S = 60
DEFAULT_MEMORY_BYTES = 2**30
KEPT_CLOSED_SESSIONS = 256  # and so many of their calls; older closed sessions are forgotten, so that memory stays flat
KEPT_CLOSED_TASKS = 8192
KEPT_CLOSED_BYTES = 64 * 2**20

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


class State:
    """All applications and sessions by name."""

    def __init__(self) -> None:
        self.applications: dict[str, ApplicationRecord] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self.open_sessions: dict[str, SessionRecord] = {}
        self._closed: deque[SessionRecord] = deque()
        self._serial = 0

    def register(self, name: str, spec: Any, update: bool = False) -> None:
        _check_application(name, spec)
        if update:
            self.application(name)
            self._check_unused(name)
        elif name in self.applications:
            raise StateError("ALREADY_EXISTS", f"application <{name}> already exists")
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
        self._check_unused(name)
        del self.applications[name]
        for session_id in [key for key, session in self.sessions.items() if session.spec.application == name]:
            self.delete_session(session_id)

    def _check_unused(self, name: str) -> None:
        if any(session.spec.application == name for session in self.open_sessions.values()):
            raise StateError("INTERNAL", f"application <{name}> has open sessions")

    def application(self, name: str) -> ApplicationRecord:
        if name not in self.applications:
            raise StateError("NOT_FOUND", f"application <{name}> not found")
        return self.applications[name]

    def session(self, session_id: str) -> SessionRecord:
        if session_id not in self.sessions:
            raise StateError("NOT_FOUND", f"session <{session_id}> not found")
        return self.sessions[session_id]

    def task(self, session_id: str, task_id: str) -> TaskRecord:
        if not task_id.isdecimal():
            raise StateError("INVALID_ARGUMENT", f"task id {task_id!r} is not a number")
        task = self.session(session_id).tasks.get(int(task_id))
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
        self.sessions[session_id] = self.open_sessions[session_id] = session
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

    def close_session(self, session_id: str) -> SessionRecord:
        session = self.session(session_id)
        if session.is_open:
            session.close()
            del self.open_sessions[session_id]
            self._closed.append(session)
            self._forget_old()
        return session

    def _forget_old(self) -> None:
        while len(self._closed) > 1 and self._is_too_much():
            self._forget(self._closed[0])

    def _is_too_much(self) -> bool:
        return (
            len(self._closed) > KEPT_CLOSED_SESSIONS
            or sum(len(session.tasks) for session in self._closed) > KEPT_CLOSED_TASKS
            or sum(session.history.num_bytes for session in self._closed) > KEPT_CLOSED_BYTES
        )

    def _forget(self, session: SessionRecord) -> None:
        self._closed.remove(session)
        del self.sessions[session.id]
        for task in session.tasks.values():
            task.wake()  # their watch streams end without a terminal state

    def delete_session(self, session_id: str) -> SessionRecord:
        session = self.session(session_id)
        if session.is_open:
            raise StateError("INTERNAL", f"session <{session_id}> is open; close it before it is deleted")
        self._forget(session)
        return session


def _check_application(name: str, spec: Any) -> None:
    if not _NAME.fullmatch(name) or ".." in name:
        raise StateError("INVALID_ARGUMENT", f"application name {name!r}: 1 to 253 of A-Z a-z 0-9 . _ -")
    if spec.HasField("working_directory") and spec.working_directory and spec.working_directory[0] != "/":
        raise StateError("INVALID_ARGUMENT", f"working_directory must be absolute, got {spec.working_directory!r}")
    for field, text in spec.schema.ListFields():
        _check_schema(field.name, text)


def _check_schema(field: str, text: str) -> None:
    """JSON, and an object or a boolean as JSON Schema has it; the words inside are not looked at."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise StateError("INVALID_ARGUMENT", f"{field} schema is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise StateError("INVALID_ARGUMENT", f"{field} schema is {text[:60]}, expected a JSON object")


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
