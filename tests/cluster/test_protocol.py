"""Pinned behaviour of the embedded cluster's wire protocol, black box through the stock flamepy client.

1.  Applications: register, list, get with defaults, bad names refused, unregister refused while a session is open.
2.  Sessions: create, open, open again with an equal or another specification, close twice, open of a closed one.
3.  Tasks: run through, watch, list, get; a failing one carries its text as an event; unknown ids are errors.
4.  Closing is refused while a call runs; pending calls are cancelled.
5.  Task inputs above 4 MiB are refused, just below they pass.
6.  Runner: functions, classes, stateful objects, futures as arguments, results as they complete, calls from calls.
7.  Hundreds of calls in parallel all come back.
8.  Objects: patches are delivered once each to a reader that has the base; update drops them; native tables.
9.  Packages up and down; deletion by key, session, application.
10. Idle executors are released after the application's delay; gangs are all or nothing.
11. Bind failures are events 1001 with text, then 1002.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import flamepy
import numpy as np
import pyarrow as pa
import pytest
from flamepy.core import cache as sdk_cache
from flamepy.core.client import ConnectionInstance
from flamepy.core.types import ApplicationAttributes, SessionAttributes, TaskState
from flamepy.runner import Runner

from seeker.cluster.client import Cluster
from tests.cluster.conftest import object_keys, wait_until

SERVICE = """
import os, sys, time
import flamepy

class Plain(flamepy.FlameService):
    def on_session_enter(self, context):
        self.common = context.common_data() or b""
        if self.common == b"refuse":
            raise RuntimeError("cannot enter this session")
    def on_task_invoke(self, context):
        data = context.input or b""
        if data == b"fail":
            raise ValueError("task refused")
        if data == b"exit":
            os._exit(7)
        if data.startswith(b"sleep "):
            time.sleep(float(data[6:]))
        if len(data) > 1000:
            return str(len(data)).encode()
        return self.common + data
    def on_session_leave(self):
        pass

flamepy.run(Plain())
"""


def _reset_sdk() -> None:
    ConnectionInstance._connection = None
    sdk_cache._context_cache = None
    sdk_cache._client_pool.clear()
    sdk_cache._object_cache.clear()


@pytest.fixture(autouse=True)
def _stock_client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLAME_ENDPOINT", cluster.endpoint)
    monkeypatch.setenv("FLAME_CACHE_ENDPOINT", cluster.describe()["cache_endpoint"])
    monkeypatch.chdir(tmp_path)
    _reset_sdk()
    yield
    _reset_sdk()


@pytest.fixture(scope="module")
def plain(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An application of our own: a script that serves flamepy's service interface."""
    script = tmp_path_factory.mktemp("service") / "plain.py"
    script.write_text(SERVICE)
    connection = flamepy.connect(cluster.endpoint)
    attributes = ApplicationAttributes(
        command=cluster.settings.executor_python(), arguments=[str(script)], delay_release=1
    )
    connection.register_application("plain", attributes)
    return "plain"


@pytest.fixture
def session(plain: str) -> Iterator[flamepy.Session]:
    opened = flamepy.create_session(plain, common_data=b"<", max_instances=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared(plain: str, cluster: Cluster) -> str:
    """The name of a session that tests share when they do not look at its counters."""
    attributes = SessionAttributes(id="shared", application=plain, common_data=b"<", max_instances=2)
    return flamepy.connect(cluster.endpoint).open_session("shared", attributes).id


def test_applications() -> None:
    name = f"app-{uuid.uuid4().hex[:6]}"
    flamepy.register_application(name, {"command": "/bin/true", "environments": {"A": "1"}, "working_directory": "/"})
    application = flamepy.get_application(name)
    assert (application.command, application.environments, application.working_directory) == (
        "/bin/true",
        {"A": "1"},
        "/",
    )
    assert (application.max_instances, application.delay_release, application.image) == (1_000_000, 60, None)
    assert name in [each.name for each in flamepy.list_applications()]
    assert flamepy.get_application("flmrun").installer == "python"
    opened = flamepy.create_session(name)
    with pytest.raises(flamepy.FlameError, match="has open sessions"):
        flamepy.unregister_application(name)
    opened.close()
    flamepy.unregister_application(name)
    assert flamepy.get_application(name) is None
    for bad in ("", "-x", "a..b", "a/b", "x" * 254):
        with pytest.raises(flamepy.FlameError):
            flamepy.register_application(bad, {"command": "/bin/true"})
    with pytest.raises(flamepy.FlameError, match="absolute"):
        flamepy.register_application(name, {"command": "x", "working_directory": "relative"})


def test_sessions(plain: str) -> None:
    session_id = f"s-{uuid.uuid4().hex[:6]}"
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(session_id)
    assert caught.value.code == flamepy.FlameErrorCode.NOT_FOUND
    spec = SessionAttributes(id=session_id, application=plain, common_data=b"x", max_instances=4)
    opened = flamepy.open_session(session_id, spec)
    assert (opened.id, opened.common_data(), opened.state.name) == (session_id, b"x", "OPEN")
    assert flamepy.open_session(session_id, spec).id == session_id
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(session_id, SessionAttributes(id=session_id, application=plain, max_instances=5))
    assert caught.value.code == flamepy.FlameErrorCode.INVALID_ARGUMENT
    with pytest.raises(flamepy.FlameError, match="already exists"):
        flamepy.create_session(plain, session_id=session_id)
    assert session_id in [each.id for each in flamepy.list_sessions()]
    assert opened.close() is None
    assert flamepy.close_session(session_id).state.name == "CLOSED"
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(session_id)
    assert caught.value.code == flamepy.FlameErrorCode.INVALID_ARGUMENT
    with pytest.raises(flamepy.FlameError):
        opened.create_task(b"late")
    with pytest.raises(flamepy.FlameError):
        flamepy.create_session("no-such-application")
    with pytest.raises(flamepy.FlameError, match="multiples"):
        flamepy.create_session(plain, min_instances=3, batch_size=2)


def test_tasks(session: flamepy.Session) -> None:
    assert session.invoke(b"a") == b"<a"
    futures = [session.run(f"{number}".encode()) for number in range(20)]
    assert [future.result(timeout=30) for future in futures] == [f"<{number}".encode() for number in range(20)]
    task = session.create_task(b"sleep 0.2")
    states = [each.state for each in session.watch_task(task.id)]
    assert states[-1] == TaskState.SUCCEED
    assert TaskState.PENDING not in states
    assert [each.state for each in session.watch_task(task.id)] == [TaskState.SUCCEED]
    got = session.get_task(task.id)
    assert (got.input, got.output, got.is_completed()) == (b"sleep 0.2", b"<sleep 0.2", True)
    assert len(list(session.list_tasks())) == 22
    counted = flamepy.get_session(session.id)
    assert (counted.succeed, counted.failed, counted.pending, counted.running) == (22, 0, 0, 0)
    with pytest.raises(flamepy.FlameError):
        session.get_task("999")


def test_failing_task(session: flamepy.Session) -> None:
    with pytest.raises(flamepy.FlameError, match="task refused"):
        session.invoke(b"fail")
    task = next(each for each in session.list_tasks())
    assert [event.code for event in session.get_task(task.id).events] == [0, 1, 3]
    assert session.invoke(b"b") == b"<b"
    with pytest.raises(flamepy.FlameError, match=r"transport error.*exited with code 7"):
        session.invoke(b"exit")
    assert session.invoke(b"c") == b"<c"  # by a new executor


def test_closing_with_calls(plain: str) -> None:
    opened = flamepy.create_session(plain, max_instances=1)
    running, waiting = opened.create_task(b"sleep 1.5"), opened.create_task(b"x")
    wait_until(lambda: flamepy.get_session(opened.id).running == 1, 10, "the first call runs")
    with pytest.raises(flamepy.FlameError, match="Cannot close session with running tasks"):
        opened.close()
    assert list(opened.watch_task(running.id))[-1].state == TaskState.SUCCEED
    opened.invoke(b"y")
    assert opened.get_task(waiting.id).state == TaskState.SUCCEED
    blocked = flamepy.create_session(plain, max_instances=1, resreq=flamepy.ResourceRequirement.from_string("cpu=99"))
    pending = blocked.create_task(b"z")
    blocked.close()
    with pytest.raises(flamepy.FlameError, match="4 is not a valid TaskState"):  # the SDK knows no cancelled state
        list(blocked.watch_task(pending.id))
    opened.close()


def test_message_limit(shared: str) -> None:
    session = flamepy.open_session(shared)
    assert session.invoke(b"x" * 4_190_000) == b"4190000"
    with pytest.raises(flamepy.FlameError, match="failed to create task"):
        session.create_task(b"x" * 4_200_000)


def test_runner_functions_classes_and_objects(cluster: Cluster) -> None:
    def add(left: int, right: int) -> int:
        return left + right

    class Counter:
        def __init__(self) -> None:
            self.total = 0

        def add(self, value: int) -> int:
            self.total += value
            return self.total

    name = f"runner-{uuid.uuid4().hex[:6]}"
    with Runner(name) as runner:
        adder = runner.service(add)
        assert adder(adder(1, 2), right=adder(3, 4)).get() == 10
        futures = [adder(number, number) for number in range(4)]
        assert sorted(future.get() for future in runner.select(futures)) == list(range(0, 8, 2))
        counter = runner.service(Counter())
        counter.add(2).wait()
        assert counter.add(3).get() == 5
        warm = runner.service(Counter, warmup=1, autoscale=False)
        assert [warm.add(1).get() for _ in range(3)] == [1, 2, 3]
        shared = runner.put_object(np.arange(5))
        assert adder(shared, 1).get().tolist() == [1, 2, 3, 4, 5]
        with pytest.raises(flamepy.FlameError, match="unsupported operand"):
            adder(1, "x").get()
    assert flamepy.get_application(name) is None
    assert object_keys(cluster.describe()["cache_endpoint"], name) == []


def test_calls_from_calls() -> None:
    def outer(name: str, depth: int) -> int:
        from flamepy.runner import Runner

        def inner(value: int) -> int:
            return value + 1

        with Runner(name) as nested:
            return nested.service(inner)(depth).get()

    name = f"nested-{uuid.uuid4().hex[:6]}"
    with Runner(name) as runner:
        assert runner.service(outer)(name, 41).get() == 42


def test_hundreds_of_calls(shared: str) -> None:
    session = flamepy.open_session(shared)
    futures = [session.run(f"{number}".encode()) for number in range(400)]
    assert [future.result(timeout=60) for future in futures] == [f"<{number}".encode() for number in range(400)]


def _combined(base: str, patches: list[str]) -> tuple[str, ...]:
    return (base, *patches)


def test_patches() -> None:
    ref = sdk_cache.put_object("app/s", "base")
    assert ref.version == 1
    for text in ("one", "two"):
        ref = sdk_cache.patch_object(ref, text)
    assert ref.version == 3
    assert sdk_cache.get_object(ref, _combined) == ("base", "one", "two")
    ref = sdk_cache.patch_object(ref, "three")
    rows = sdk_cache._fetch_object_data(ref, 3)
    assert [patch.data for patch in rows.patches] == ["three"]
    assert sdk_cache._fetch_object_data(ref, 4) is None
    assert sdk_cache.get_object(ref) == "base"
    ref = sdk_cache.update_object(ref, "new")
    assert sdk_cache.get_object(ref, _combined) == ("new",)
    sdk_cache.delete_objects("app/s")
    with pytest.raises(KeyError):
        sdk_cache.get_object(ref)
    with pytest.raises((KeyError, ValueError)):
        sdk_cache.patch_object(ref, "gone")
    sdk_cache.delete_objects("app/s")


def test_values_in_the_cache() -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})
    for value in (table, table.to_batches()[0]):
        ref = sdk_cache.put_object("app/tables", value)
        assert sdk_cache.get_object(ref).equals(value)
        ref = sdk_cache.update_object(ref, value.slice(1))
        assert ref.version == 2
        assert sdk_cache.get_object(ref).equals(value.slice(1))
        assert sdk_cache.get_object(ref).num_rows == 2
    empty = table.slice(3)
    assert sdk_cache.get_object(sdk_cache.put_object("app/tables", empty)).num_rows == 0
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(sdk_cache.get_object(sdk_cache.put_object("app/s", array)), array)
    sdk_cache.delete_objects("app/*")


def test_packages(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "package.tar.gz"
    path.write_bytes(bytes(range(256)) * 12_000)  # several chunks of 1 MiB
    ref = sdk_cache.upload_object("app/pkg/package.tar.gz", str(path))
    reader = sdk_cache._get_flight_client(ref.endpoint).do_get(sdk_cache.flight.Ticket(f"{ref.key}:0".encode()))
    assert reader.read_all().column("data")[0].as_py() == path.read_bytes()  # `download_object` itself is broken
    sdk_cache.delete_objects("app/pkg/package.tar.gz")
    assert object_keys(cluster.describe()["cache_endpoint"], "app/pkg") == []


def test_nodes_and_executors(shared: str) -> None:
    session = flamepy.open_session(shared)
    node = flamepy.list_nodes()[0]
    assert (node.status.state, node.status.capacity.cpu) == (1, 16)
    session.invoke(b"a")
    mine = [each for each in flamepy.list_executors() if each.status.session_id == session.id]
    assert {(each.spec.resreq.cpu, each.spec.node) for each in mine} == {(1, node.metadata.name)}
    assert 4 in [each.status.state for each in mine]  # bound; a second one may be on its way


def test_idle_release(plain: str) -> None:
    opened = flamepy.create_session(plain, max_instances=1)
    opened.invoke(b"a")

    def mine() -> list[str]:
        return [each.metadata.id for each in flamepy.list_executors() if each.status.session_id == opened.id]

    first = mine()
    assert len(first) == 1
    assert wait_until(lambda: not mine(), 6, "release after a second of quiet") > 0.5
    assert opened.invoke(b"b") == b"b"
    assert mine() != first
    opened.close()


def test_gangs_never_hold_half(cluster: Cluster, plain: str) -> None:
    def held(opened: flamepy.Session) -> int:
        return sum(each.status.session_id == opened.id for each in flamepy.list_executors())

    large = flamepy.ResourceRequirement.from_string("cpu=6,mem=64m")
    gangs = [flamepy.create_session(plain, None, None, 2, 2, 2, large) for _ in range(3)]
    seen: set[tuple[int, ...]] = set()
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        seen.add(tuple(held(each) for each in gangs))
        time.sleep(0.02)
    gangs[0].close()
    wait_until(lambda: held(gangs[1]) == 2, 10, "the next gang runs when the first is closed")
    for each in gangs[1:]:
        each.close()
    assert all(count in (0, 2) for counts in seen for count in counts)
    assert max(sum(counts) for counts in seen) <= 2  # 16 cores, 6 each


def test_bind_failures_are_events(plain: str) -> None:
    flamepy.register_application("broken", {"command": "/bin/false"})
    opened = flamepy.create_session("broken", max_instances=1)
    opened.create_task(b"a")
    wait_until(lambda: len(flamepy.get_session(opened.id).events) == 6, 30, "five 1001 and a 1002")
    events = flamepy.get_session(opened.id).events
    assert [event.code for event in events] == [1001] * 5 + [1002]
    assert "return_code <11>: the process exited with code 1 before it opened its socket" in events[0].message
    opened.close()
    refused = flamepy.create_session(plain, common_data=b"refuse", max_instances=1)
    refused.create_task(b"a")
    wait_until(lambda: len(flamepy.get_session(refused.id).events) > 0, 30, "the refusal")
    text = flamepy.get_session(refused.id).events[0].message
    assert "failed to bind session with return_code <12>: cannot enter this session" in text
    refused.close()
