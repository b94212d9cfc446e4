"""What the embedded cluster does better than the engine, or that only it can be asked; the rest is `conformance/`.

1.  A failed task carries its text on the watch stream, so that futures of the stock client tell it.
2.  A process that exits in a call fails that call with exit code and log; the next call gets a new executor.
3.  A command that ends before it opens its socket is an event 1001 with its exit code and log, five times, then 1002.
4.  Gangs are all or nothing at every moment.
5.  A request that no node meets waits, holds nobody up, and its session closes.
6.  A Runner leaves no object behind.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import flamepy
import pytest
from flamepy.core import cache as sdk_cache
from flamepy.core.client import ConnectionInstance
from flamepy.core.types import ApplicationAttributes
from flamepy.runner import Runner

from seeker.cluster.client import Cluster
from tests.cluster.conftest import object_keys, wait_until

SERVICE = """
import os
import flamepy

class Plain(flamepy.FlameService):
    def on_session_enter(self, context):
        self.common = context.common_data() or b""
    def on_task_invoke(self, context):
        data = context.input or b""
        if data == b"fail":
            raise ValueError("task refused")
        if data == b"exit":
            os._exit(7)
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


def test_failures_tell_their_text(session: flamepy.Session) -> None:  # 1
    with pytest.raises(flamepy.FlameError, match="task refused"):
        session.invoke(b"fail")
    assert session.invoke(b"b") == b"<b"


def test_a_process_that_exits(session: flamepy.Session) -> None:  # 2
    with pytest.raises(flamepy.FlameError, match=r"transport error.*exited with code 7"):
        session.invoke(b"exit")
    assert session.invoke(b"c") == b"<c"  # by a new executor


def test_gangs_never_hold_half(plain: str) -> None:  # 4
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


def test_a_command_that_ends_at_once() -> None:  # 3
    flamepy.register_application("broken", {"command": "/bin/false"})
    opened = flamepy.create_session("broken", max_instances=1)
    opened.create_task(b"a")
    wait_until(lambda: len(flamepy.get_session(opened.id).events) == 6, 30, "five 1001 and a 1002")
    events = flamepy.get_session(opened.id).events
    assert [event.code for event in events] == [1001] * 5 + [1002]
    assert "return_code <11>: the process exited with code 1 before it opened its socket" in events[0].message
    opened.close()


def test_no_room(plain: str) -> None:  # 5
    blocked = flamepy.create_session(plain, max_instances=1, resreq=flamepy.ResourceRequirement.from_string("cpu=99"))
    blocked.create_task(b"z")
    served = flamepy.create_session(plain, max_instances=1)
    assert served.invoke(b"a") == b"a"
    assert flamepy.get_session(blocked.id).pending == 1
    assert not [each for each in flamepy.list_executors() if each.status.session_id == blocked.id]
    served.close()
    blocked.close()


def test_a_runner_leaves_no_object(cluster: Cluster) -> None:  # 6
    def add(left: int, right: int) -> int:
        return left + right

    name = f"runner-{uuid.uuid4().hex[:6]}"
    with Runner(name) as runner:
        runner.put_object("shared")
        assert runner.service(add, autoscale=False)(1, 2).get() == 3
    assert object_keys(cluster.describe()["cache_endpoint"], name) == []
