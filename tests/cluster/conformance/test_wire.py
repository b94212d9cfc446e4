"""What the SDK hides: statuses, states and fields on the wire.

1.  Unknown names are NOT_FOUND, taken ones ALREADY_EXISTS, what breaks a rule INVALID_ARGUMENT, the rest INTERNAL.
2.  Failures of registering, updating and unregistering are OK replies with return code -1; bad arguments are refused.
3.  Updating replaces every attribute; it needs an application that exists and has no open session.
4.  Ids and names are equal strings; times are Unix milliseconds; what is absent is not set.
5.  Priority is kept and compared on opening, though the SDK cannot set it.
6.  A watch tells a state once, never the pending one, and ends well after the last; its task may carry no events.
7.  Cancelled is state 4, counted in the session's status.
8.  A watch of a task that is not there ends without a state, or with an error.
9.  A closed session can be deleted, an open one cannot.
10. Nodes have capacity, what is left of it, and a state; executors a node, resources and a session.
11. A message above 4 MiB is refused by its size.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlparse

import flamepy
import grpc
import pytest
from flamepy.proto import frontend_pb2 as messages
from flamepy.proto import types_pb2 as types
from flamepy.proto.frontend_pb2_grpc import FrontendStub

from tests.cluster.conformance.target import Target
from tests.cluster.conformance.waiting import LIMIT_S, executors_of, value_of

PENDING, RUNNING, SUCCEED, FAILED, CANCELLED = range(5)


@pytest.fixture(scope="module")
def frontend(target: Target) -> Iterator[Any]:
    if urlparse(target.endpoint).scheme != "http":
        pytest.skip("the raw checks speak without TLS")
    with grpc.insecure_channel(urlparse(target.endpoint).netloc) as channel:
        yield FrontendStub(channel)


def status_of(work: Callable[[], Any]) -> str:
    """The name of the status that a request ends with."""
    try:
        work()
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def _session(application: str, **fields: Any) -> Any:
    return types.SessionSpec(application=application, **{"batch_size": 1, **fields})


def _create(frontend: Any, application: str, session_id: str, **fields: Any) -> Any:
    spec = _session(application, **fields)
    return frontend.CreateSession(messages.CreateSessionRequest(session_id=session_id, session=spec), timeout=LIMIT_S)


def _close(frontend: Any, session_id: str) -> Any:
    return frontend.CloseSession(messages.CloseSessionRequest(session_id=session_id), timeout=LIMIT_S)


def _submit(frontend: Any, session_id: str, data: bytes) -> Any:
    task = types.TaskSpec(session_id=session_id, input=data)
    return frontend.CreateTask(messages.CreateTaskRequest(task=task), timeout=LIMIT_S)


def _watch(frontend: Any, session_id: str, task_id: str) -> list[Any]:
    return list(frontend.WatchTask(messages.WatchTaskRequest(session_id=session_id, task_id=task_id), timeout=LIMIT_S))


def test_not_found(frontend: Any, shared: flamepy.Session, name: str) -> None:  # 1
    requests = [
        lambda: frontend.GetApplication(messages.GetApplicationRequest(name=name)),
        lambda: frontend.GetNode(messages.GetNodeRequest(name=name)),
        lambda: frontend.GetSession(messages.GetSessionRequest(session_id=name)),
        lambda: frontend.OpenSession(messages.OpenSessionRequest(session_id=name)),
        lambda: frontend.DeleteSession(messages.DeleteSessionRequest(session_id=name)),
        lambda: frontend.GetTask(messages.GetTaskRequest(session_id=name, task_id="1")),
        lambda: frontend.GetTask(messages.GetTaskRequest(session_id=shared.id, task_id="99999999")),
        lambda: list(frontend.ListTask(messages.ListTaskRequest(session_id=name))),
        lambda: _close(frontend, name),
        lambda: _submit(frontend, name, b"x"),
        lambda: _create(frontend, name, name),
    ]
    assert [status_of(request) for request in requests] == ["NOT_FOUND"] * len(requests)


def test_rules(frontend: Any, plain: str, name: str) -> None:  # 1
    assert status_of(lambda: _create(frontend, plain, name, min_instances=3, batch_size=2)) == "INVALID_ARGUMENT"
    _create(frontend, plain, name)
    assert status_of(lambda: _create(frontend, plain, name)) == "ALREADY_EXISTS"
    other = messages.OpenSessionRequest(session_id=name, session=_session(plain, max_instances=3))
    assert status_of(lambda: frontend.OpenSession(other)) == "INVALID_ARGUMENT"
    _close(frontend, name)
    for request in (
        lambda: frontend.OpenSession(messages.OpenSessionRequest(session_id=name)),
        lambda: _submit(frontend, name, b"late"),
    ):
        assert status_of(request) == "INVALID_ARGUMENT"
    assert status_of(lambda: _close(frontend, name)) == "OK"
    number = messages.GetTaskRequest(session_id=name, task_id="one")
    assert status_of(lambda: frontend.GetTask(number)) == "INVALID_ARGUMENT"


def _register(frontend: Any, name: str, spec: Any, update: bool = False) -> int | str:
    """The return code, or the status that refused the request."""
    kind, call = messages.RegisterApplicationRequest, frontend.RegisterApplication
    if update:
        kind, call = messages.UpdateApplicationRequest, frontend.UpdateApplication
    try:
        reply = call(kind(name=name, application=spec), timeout=LIMIT_S)
    except grpc.RpcError as error:
        return error.code().name
    assert reply.return_code == 0 or reply.message
    return reply.return_code


def test_registering(frontend: Any, name: str) -> None:  # 2
    unknown = messages.UnregisterApplicationRequest(name=name)
    assert frontend.UnregisterApplication(unknown).return_code == -1
    relative = types.ApplicationSpec(command="/bin/true", working_directory="here")
    schema = types.ApplicationSpec(command="/bin/true", schema=types.ApplicationSchema(input="{"))
    for bad in (relative, schema):
        assert _register(frontend, name, bad) == "INVALID_ARGUMENT"
    assert _register(frontend, "no/name", types.ApplicationSpec(command="/bin/true")) in ("INVALID_ARGUMENT", -1)
    assert _register(frontend, name, types.ApplicationSpec(command="/bin/true")) == 0
    _create(frontend, name, name)
    assert frontend.UnregisterApplication(unknown).return_code == -1
    _close(frontend, name)
    assert frontend.UnregisterApplication(unknown).return_code == 0


def test_updating(frontend: Any, name: str) -> None:  # 3
    first = types.ApplicationSpec(command="/bin/true", description="first", labels=["a"])
    assert _register(frontend, name, first, update=True) == -1
    assert _register(frontend, name, first) == 0
    _create(frontend, name, name)
    assert _register(frontend, name, first, update=True) == -1
    _close(frontend, name)
    second = types.ApplicationSpec(command="/bin/false", max_instances=5)
    assert _register(frontend, name, second, update=True) == 0
    kept = frontend.GetApplication(messages.GetApplicationRequest(name=name)).spec
    assert (kept.command, kept.max_instances, list(kept.labels)) == ("/bin/false", 5, [])
    assert not kept.HasField("description")
    frontend.UnregisterApplication(messages.UnregisterApplicationRequest(name=name))


def test_fields(frontend: Any, plain: str, name: str) -> None:  # 4, 5
    created = _create(frontend, plain, name, priority=7)
    assert (created.metadata.id, created.metadata.name, created.spec.application) == (name, name, plain)
    assert (created.spec.priority, created.spec.batch_size, created.status.state) == (7, 1, 0)
    for field in ("common_data", "max_instances"):
        assert not created.spec.HasField(field)
    assert not created.status.HasField("completion_time")
    assert abs(created.status.creation_time / 1000 - time.time()) < 12 * 3600
    for priority, status in ((7, "OK"), (8, "INVALID_ARGUMENT")):
        other = messages.OpenSessionRequest(session_id=name, session=_session(plain, priority=priority))
        assert status_of(lambda other=other: frontend.OpenSession(other)) == status
    closed = _close(frontend, name)
    assert (closed.status.state, closed.spec.priority) == (1, 7)
    assert closed.status.completion_time >= closed.status.creation_time
    application = frontend.GetApplication(messages.GetApplicationRequest(name=plain))
    assert application.metadata.id == application.metadata.name == plain
    assert (application.spec.max_instances, application.spec.delay_release) == (1_000_000, 3)
    assert application.spec.HasField("max_instances")


def test_a_watch(frontend: Any, shared: flamepy.Session) -> None:  # 4, 6
    task = _submit(frontend, shared.id, b"sleep 0.2")
    assert (task.status.state, task.metadata.id) == (PENDING, task.metadata.name)
    seen = _watch(frontend, shared.id, task.metadata.id)
    assert [each.status.state for each in seen] in ([RUNNING, SUCCEED], [SUCCEED])
    assert (seen[-1].spec.session_id, seen[-1].spec.input, seen[-1].spec.output) == (shared.id, b"sleep 0.2", b"slept")
    assert seen[-1].status.HasField("completion_time")
    failing = _submit(frontend, shared.id, b"fail by design")
    last = _watch(frontend, shared.id, failing.metadata.id)[-1]
    assert (last.status.state, last.spec.HasField("output")) == (FAILED, False)
    assert [event.message for event in last.status.events if event.code == FAILED] in ([], ["by design"])
    got = frontend.GetTask(messages.GetTaskRequest(session_id=shared.id, task_id=failing.metadata.id))
    assert [event.message for event in got.status.events if event.code == FAILED] == ["by design"]


def test_cancelled(frontend: Any, plain: str, name: str) -> None:  # 7
    _create(frontend, plain, name, common_data=b"refuse", max_instances=1)
    tasks = [_submit(frontend, name, b"x").metadata.id for _ in range(2)]
    closed = _close(frontend, name)
    assert closed.status.state == 1
    assert [each.status.state for task in tasks for each in _watch(frontend, name, task)] == [CANCELLED] * 2
    status = frontend.GetSession(messages.GetSessionRequest(session_id=name)).status
    assert (status.pending, status.running, status.cancelled) == (0, 0, 2)


def test_a_watch_of_nothing(frontend: Any, shared: flamepy.Session) -> None:  # 8
    seen: list[Any] = []
    status = status_of(lambda: seen.extend(_watch(frontend, shared.id, "99999999")))
    assert seen == []
    assert status in ("OK", "NOT_FOUND")


def test_deleting(frontend: Any, plain: str, name: str) -> None:  # 9
    delete = messages.DeleteSessionRequest(session_id=name)
    _create(frontend, plain, name)
    assert status_of(lambda: frontend.DeleteSession(delete)) == "INTERNAL"
    _close(frontend, name)
    assert frontend.DeleteSession(delete).metadata.id == name
    assert status_of(lambda: frontend.GetSession(messages.GetSessionRequest(session_id=name))) == "NOT_FOUND"
    _create(frontend, plain, name)  # the name is free again
    _close(frontend, name)


def test_nodes_and_executors(frontend: Any, shared: flamepy.Session) -> None:  # 10
    nodes = {node.metadata.name: node for node in frontend.ListNodes(messages.ListNodesRequest()).nodes}
    ready = [node for node in nodes.values() if node.status.state == 1]
    assert ready
    for node in ready:
        assert node.status.capacity.cpu >= 1
        assert node.status.capacity.memory > 2**20
        assert node.status.info.arch
        assert node.status.info.os
        again = frontend.GetNode(messages.GetNodeRequest(name=node.metadata.name)).node
        assert again.status.capacity == node.status.capacity
    value_of(shared.run(b"here"))
    for executor in executors_of(shared):
        assert str(uuid.UUID(executor.metadata.id)) == executor.metadata.id == executor.metadata.name
        assert executor.spec.node in nodes
        assert executor.status.HasField("session_id")


def test_the_size_of_a_message(frontend: Any, shared: flamepy.Session) -> None:  # 11
    refusal = status_of(lambda: _submit(frontend, shared.id, bytes(4_200_000)))
    assert refusal in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
