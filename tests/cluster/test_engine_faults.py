"""Pinned behaviour of the embedded cluster with ``--faults engine``: the faults of real 0.6.0 servers, as raw messages.

1.  A process that dies in a call: the call fails with `transport error`, its executor stays Bound and fails every
    further call at once, faster than a healthy one works.
2.  Closing that session leaves the executor in Unbinding for ever; then no session gets an executor any more.
3.  A process that dies entering its session: one event 1001 `transport error`, no second try, and the same standstill.
4.  A constructor that hangs stays in Binding, without an event, also after the session is closed.
5.  A command that ends before its socket is open: every slot ends in Binding for one pending call, without an event.
6.  One pending call takes the session to its maximum, one executor a cycle.
7.  Idle executors are bound past the maximum and without a look at resources.
8.  So a gang gets surplus members.
9.  An executor made for one session is taken by another with pending calls.
10. Watch streams carry no events; `GetTask` does.
11. Closing is refused while a call runs, and cancels nothing then.
12. An idle release within the minimum starts a cold process at once.
13. A session that refuses to be entered has five events 1001, then 1002.
14. A name that is registered anew reruns its old package.
15. Everything goes over gRPC: neither drivers nor executors are offered a way around it.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from seeker.cluster import wire
from seeker.cluster.local.faults_plan import allocate, dispatch
from seeker.cluster.local.plan import Standing
from seeker.cluster.resources import Resources
from seeker.cluster.starter.boot import CALL_SOCKET
from tests.cluster.conftest import wait_until
from tests.cluster.raw import BINDING, BOUND, UNBINDING, RawCluster, raw_cluster


@pytest.fixture
def raw() -> Iterator[RawCluster]:
    """For one test, which bricks it."""
    with raw_cluster("--slots", "4", "--faults", "engine") as cluster:
        cluster.register("plain")
        yield cluster


@pytest.fixture(scope="module")
def shared() -> Iterator[RawCluster]:
    with raw_cluster("--slots", "16", "--faults", "engine") as cluster:
        cluster.register("plain")
        yield cluster


def test_dead_process_keeps_its_executor_and_bricks_the_cluster(raw: RawCluster) -> None:
    session = raw.open("plain", max_instances=2)
    raw.call(session, "pid")
    raw.await_states(session, [BOUND, BOUND])
    task = raw.watch(session, raw.submit(session, "exit"))
    assert task.status.state == wire.TASK_FAILED
    assert list(task.status.events) == []
    stored = raw.task(session, task.metadata.id)
    assert [event.message for event in stored.status.events if event.code == wire.TASK_FAILED] == ["transport error"]
    assert raw.states(session) == [BOUND, BOUND]

    tasks = [raw.submit(session, "sleep 0.2") for _ in range(20)]
    states = [raw.watch(session, each).status.state for each in tasks]
    assert states.count(wire.TASK_FAILED) >= 17  # the dead one is faster
    assert states.count(wire.TASK_SUCCEED) >= 1

    other = raw.open("plain", max_instances=1)
    raw.call(other, "pid")
    raw.close(session)
    wait_until(lambda: UNBINDING in raw.states(session), 10, "the dead executor is in Unbinding")
    late = raw.open("plain", max_instances=1)
    pending = raw.submit(late, "pid")
    assert raw.call(other, "pid")  # what has its executor goes on
    time.sleep(0.6)
    assert raw.states(late) == []
    assert raw.task(late, pending).status.state == wire.TASK_PENDING
    assert raw.states(session) == [UNBINDING]
    assert not raw.session(late).status.events


def test_dying_while_entering(raw: RawCluster) -> None:
    session = raw.open("plain", data=b"die", max_instances=1)
    raw.submit(session, "pid")
    wait_until(lambda: len(raw.session(session).status.events) > 0, 10, "the event")
    time.sleep(0.5)
    events = raw.session(session).status.events
    assert [event.code for event in events] == [wire.BIND_FAILED]
    assert events[0].message.endswith("failed to bind session with return_code <12>: transport error")
    raw.close(session)
    late = raw.open("plain", max_instances=1)
    raw.submit(late, "pid")
    time.sleep(0.5)
    assert raw.states() == [UNBINDING]


def test_hanging_constructor(raw: RawCluster) -> None:
    session = raw.open("plain", data=b"hang", max_instances=1)
    raw.submit(session, "pid")
    raw.await_states(session, [BINDING])
    raw.close(session)
    time.sleep(0.5)
    assert raw.states() == [BINDING]
    assert not raw.session(session).status.events
    other = raw.open("plain", max_instances=2)
    raw.call(other, "pid")  # nothing is bricked; only the slot is lost


def test_command_that_ends_before_its_socket(raw: RawCluster) -> None:
    session = raw.open(raw.register("broken", arguments=("exit",)))
    raw.submit(session, "pid")
    raw.await_states(None, [BINDING] * 4)
    assert not raw.session(session).status.events


def test_gang_gets_surplus_members(shared: RawCluster) -> None:
    other = shared.open("plain", min_instances=2, max_instances=2)
    gang = shared.open("plain", min_instances=2, max_instances=2, batch_size=2)
    shared.await_states(gang, [BOUND, BOUND])
    shared.await_states(other, [BOUND] * 2)
    tasks = [shared.submit(gang, "sleep 0.8") for _ in range(4)]
    shared.close(other)
    wait_until(lambda: len(shared.executors(gang)) == 4, 5, "two more members than the maximum")
    for task in tasks:
        assert shared.watch(gang, task).status.state == wire.TASK_SUCCEED
    shared.close(gang)


def test_idle_executors_are_bound_whatever_their_size(shared: RawCluster) -> None:
    first = shared.open("plain", max_instances=2)
    shared.call(first, "pid")
    shared.close(first)
    large = shared.open("plain", cpu=64, gpu=8, max_instances=1)
    assert shared.call(large, "pid")  # on a core of a node that has neither
    shared.close(large)


def test_one_call_takes_a_session_to_its_maximum(raw: RawCluster) -> None:
    session = raw.open(raw.register("deaf", arguments=("deaf",)), max_instances=3)
    start = time.monotonic()
    raw.submit(session, "pid")
    raw.await_states(session, [BINDING] * 3)
    assert time.monotonic() - start > 0.2  # one a cycle
    time.sleep(0.3)
    assert len(raw.executors(session)) == 3


def test_streams_and_closing(shared: RawCluster) -> None:
    session = shared.open("plain", max_instances=1)
    failed = shared.watch(session, shared.submit(session, "fail no luck"))
    assert list(failed.status.events) == []
    assert "no luck" in [event.message for event in shared.task(session, failed.metadata.id).status.events]
    running, waiting = shared.submit(session, "sleep 1"), shared.submit(session, "pid")
    wait_until(lambda: shared.session(session).status.running == 1, 5, "the first runs")
    with pytest.raises(grpc.RpcError) as caught:
        shared.close(session)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.INTERNAL,
        "Cannot close session with running tasks",
    )
    assert shared.watch(session, running).status.state == wire.TASK_SUCCEED
    assert shared.watch(session, waiting).status.state == wire.TASK_SUCCEED


@pytest.mark.drill
def test_idle_release_and_refusals(shared: RawCluster) -> None:
    session = shared.open(shared.register("brief", delay_release=2), min_instances=1, max_instances=1)
    first = shared.call(session, "pid")
    time.sleep(0.5)
    assert shared.call(session, "pid") == first
    time.sleep(2.6)
    assert shared.call(session, "pid") != first
    refusing = shared.open("plain", data=b"refuse", max_instances=1)
    shared.submit(refusing, "pid")
    wait_until(lambda: len(shared.session(refusing).status.events) == 6, 10, "five refusals and the end")
    assert [event.code for event in shared.session(refusing).status.events] == [1001] * 5 + [1002]


def test_a_name_keeps_its_old_package(shared: RawCluster, tmp_path: Path) -> None:
    def package(text: str) -> str:
        path = tmp_path / f"{text}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo("marker")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
        return f"file://{path}"

    for text in ("one", "two"):
        session = shared.open(shared.register("packed", url=package(text)), max_instances=1)
        root = shared.call(session, "environ PYTHONPATH").split(":")[0]
        assert (Path(root) / "marker").read_text() == "one"
        shared.close(session)
        shared.stub.UnregisterApplication(wire.frontend.UnregisterApplicationRequest(name="packed"), timeout=10)


# -- one cycle's decisions -----------------------------------------------------------------------------------------


def test_dispatch() -> None:
    waiting = Standing("a", pending=1, maximum=4, held=4, each=Resources(cpu=64))
    assert dispatch([waiting], 9) == [("a", 1)]
    gang = Standing("g", pending=2, minimum=2, maximum=2, batch=2, held=2)
    assert dispatch([gang], 1) == []
    assert dispatch([gang], 2) == [("g", 2)]
    content = Standing("c", minimum=1, held=1)
    assert dispatch([content], 3) == []
    urgent = Standing("u", pending=1, priority=5)
    assert dispatch([waiting, urgent], 1) == [("u", 1)]
    assert dispatch([waiting, urgent], 3) == [("u", 1)]  # a lower priority is passed over


def test_allocate() -> None:
    free = Resources(4, 2**34, 0)
    assert allocate([Standing("a", pending=1, maximum=2, held=1)], free) == [("a", 1)]
    assert allocate([Standing("a", pending=1, maximum=2, held=1, idle=1)], free) == []
    assert allocate([Standing("a", minimum=1)], free) == [("a", 1)]
    assert allocate([Standing("a", minimum=3, batch=3), Standing("b", minimum=2, batch=2)], free) == [("a", 3)]
    assert allocate([Standing("a", pending=1, each=Resources(gpu=1))], free) == []


def test_an_executor_is_taken_by_an_older_session() -> None:
    older = Standing("older", pending=1, maximum=1, held=1)
    younger = Standing("younger", pending=1, maximum=1, idle=1)  # the idle one was made for it
    assert dispatch([older, younger], 1) == [("older", 1)]


def test_all_goes_over_grpc(shared: RawCluster) -> None:
    assert shared.description["frames"] is None
    session = shared.open("plain", max_instances=1)
    assert shared.call(session, f"environ {CALL_SOCKET}") == ""
    shared.close(session)
