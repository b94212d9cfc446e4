"""Pinned behaviour of a starter in a gang, and of the calls that its driver does not want any more.

1.  Members join once N distinct executors came; ranks follow the sorted executor ids; all are told the same, and the
    service finds its place in its context. One that comes too late is a stranger.
2.  A stranger's call is told to the driver and held until it is cancelled, its generation ends or its deadline passes;
    its executor starts no process for it. The same for an executor whose node lacks what the service asks for.
3.  A call with a barrier runs once every rank is there. A rank that comes twice fails; a deadline names who is absent.
4.  A member whose process has died since is lost, also when a later call has started another process there.
5.  The end of a generation ends its waiting and running calls and the idle processes of its members, no others; the
    next generation gets new processes. A call of an ended generation that comes late changes nothing.
6.  A cancelled call ends within a second or two with its process; others go on. After "all" no call begins, and idle
    processes end.
7.  A lease that is not renewed ends the running call and idle processes, and refuses calls until it is renewed.
8.  A cache that is away, or accepts and never answers, neither ends nor holds a call.
"""

from __future__ import annotations

import signal
import socket
import time
from typing import Any

import pytest

from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.starter import watch
from seeker.cluster.starter.gpus import OVERRIDE, VARIABLE
from seeker.cluster.starter.node import MEMORY_OVERRIDE
from seeker.cluster.starter.watch import Lease, cancelled_text
from tests.cluster.conftest import is_running, wait_until
from tests.cluster.starter.conftest import Executor, Session, make_session


def form(session: Session, generation: str, executors: list[Executor]) -> list[dict[str, Any]]:
    """The replies of `executors`, which are the whole gang."""
    session.objects.put(f"gang-{generation}", {"world": len(executors)})
    joins = [each.begin("@join", generation=generation, call=f"{generation}-{each.name}") for each in executors]
    replies = [join.result(timeout=40) for join in joins]
    assert [reply["kind"] for reply in replies] == ["value"] * len(executors), replies
    return replies


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BUSY_LOOK_S", 0.1)
    monkeypatch.setattr(watch, "IDLE_LOOK_S", 0.2)


@pytest.fixture
def pair(session: Session) -> list[Executor]:
    session.objects.put("parked", {})
    executors = [session.executor("ex-b"), session.executor("ex-a")]
    form(session, "g1", executors)
    return executors


def test_joining_and_barriers(session: Session, pair: list[Executor]) -> None:
    last, first = pair
    place = last.value("gang", generation="g1")
    assert (place["generation"], place["rank"], place["world"]) == ("g1", 1, 2)
    assert place["executors"] == ("ex-a", "ex-b")
    assert len(place["hosts"]) == 2
    assert first.call("gang", generation="g1")["rank"] == 0
    session.objects.put("barrier-1", {"world": 2})
    fields = {"generation": "g1", "barrier": f"{session.objects.prefix}/barrier-1"}
    waiting = first.begin("echo", 1, **fields)
    time.sleep(0.2)
    assert not waiting.done()
    assert last.value("echo", 2, **fields) == 2
    assert waiting.result(timeout=10)["rank"] == 0
    again = first.call("echo", 1, **fields)
    assert (again["kind"], again["set_up_count"]) == ("barrier", 1)
    assert "by ranks [0]" in again["message"]
    session.objects.put("barrier-2", {"world": 2})
    absent = first.call("echo", 1, generation="g1", barrier=f"{session.objects.prefix}/barrier-2", seconds=0.5)
    assert absent["kind"] == "deadline"
    assert "ranks that did not come: 1 (ex-b)" in absent["message"]


def test_strangers_are_parked(session: Session, pair: list[Executor]) -> None:
    stranger = session.executor("ex-c")
    held = [
        stranger.begin("echo", 1, generation="g1", call="c1"),
        session.executor("ex-d").begin("@join", generation="g1", call="c2"),
    ]
    wait_until(lambda: len(session.objects.patches("parked")) == 2, 20, "both are parked")
    told = {entry["call"]: (entry["executor"], entry["reason"]) for entry in session.objects.patches("parked")}
    assert told == {"c1": ("ex-c", "stranger"), "c2": ("ex-d", "stranger")}
    assert stranger.value("@about")["service_pid"] is None
    assert not any(call.done() for call in held)
    session.objects.cancel(calls=("c1",))
    assert held[0].result(timeout=10)["kind"] == "cancelled"
    session.objects.cancel(generations=("g1",))
    reply = held[1].result(timeout=10)
    assert reply["kind"] == "cancelled"
    assert "generation g1 of its gang has ended" in reply["message"]
    late = session.executor("ex-e").call("echo", 1, generation="g0", seconds=0.4)
    assert late["kind"] == "deadline"


def test_unfit_executors_are_parked(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.objects.put("parked", {})
    monkeypatch.setenv(MEMORY_OVERRIDE, str(2**30))
    small = session.executor(resources={"memory_bytes": 2**31}).begin("echo", 1, call="c1")
    wait_until(lambda: len(session.objects.patches("parked")) == 1, 20, "it is parked")
    session.objects.cancel(calls=("c1",))
    reply = small.result(timeout=10)
    assert reply["kind"] == "unfit"
    assert "2147483648 bytes of memory are asked for" in reply["message"]
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(OVERRIDE, "0")
    reply = session.executor("ex-1", resources={"gpu": 2}, parked_key=None).call("echo", 1)
    assert reply["kind"] == "unfit"
    assert "2 GPUs are asked for" in reply["message"]


def test_lost_members(session: Session, pair: list[Executor]) -> None:
    last, first = pair
    assert last.call("kill", signal.SIGKILL, generation="g1")["kind"] == "died"
    assert last.call("echo", 1, generation="g1")["kind"] == "lost"
    assert last.call("echo", 1)["set_up_count"] == 2
    reply = last.call("echo", 1, generation="g1")
    assert (reply["kind"], reply["rank"]) == ("lost", 1)
    assert last.call("echo", 1)["set_up_count"] == 2
    session.objects.put("barrier-1", {"world": 2})
    waiting = first.begin("echo", 1, generation="g1", barrier=f"{session.objects.prefix}/barrier-1")
    wait_until(lambda: len(session.objects.patches("barrier-1")) == 1, 10, "it waits")
    first.kind.host._process._process.kill()
    reply = waiting.result(timeout=10)
    assert reply["kind"] == "died"


def test_generations_end(session: Session, pair: list[Executor]) -> None:
    last, first = pair
    pids = [executor.value("pid", generation="g1") for executor in pair]
    running = first.begin("sleep", 600, generation="g1")
    time.sleep(0.2)
    session.objects.cancel(generations=("g1",))
    reply = running.result(timeout=10)
    assert (reply["kind"], reply["signal"]) == ("cancelled", "SIGKILL")
    form(session, "g2", pair)
    assert not any(map(is_running, pids))
    assert last.call("echo", 1, generation="g1")["kind"] == "cancelled"
    assert last.value("gang", generation="g2")["generation"] == "g2"
    session.objects.cancel(generations=("g1", "g2"))
    wait_until(lambda: last.pid is None and first.pid is None, 10, "idle members end")


def test_half_formed_generations_end(session: Session) -> None:
    session.objects.put("gang-g1", {"world": 2})
    executor = session.executor()
    late = executor.call("@join", generation="g1", seconds=1.5)
    assert late["kind"] == "deadline"
    assert "1 of 2 members came: ex-0" in late["message"]
    again = executor.begin("@join", generation="g1", call="c")
    other = session.executor("ex-1")
    reply = other.call("@join", generation="g1")
    assert reply["kind"] == "value"
    assert again.result(timeout=20)["kind"] == "lost"  # its first process is the member
    assert executor.call("@join", generation="g9", seconds=5)["kind"] == "cancelled"
    assert executor.call("@join")["kind"] == "starter"


def test_cancelled_calls(session: Session) -> None:
    executor, other = session.executor(), session.executor("ex-1")
    before = executor.value("pid")
    running = executor.begin("sleep", 600, call="a")
    beside = other.begin("sleep", 2, call="b")
    time.sleep(0.1)
    session.objects.cancel(calls=("a", "z"))
    start = time.monotonic()
    reply = running.result(timeout=10)
    assert reply["kind"] == "cancelled"
    assert time.monotonic() - start < 3
    assert not is_running(before)
    assert executor.call("echo", 1, call="c")["set_up_count"] == 2
    assert executor.call("echo", 1, call="z")["kind"] == "cancelled"
    assert executor.call("echo", 1, call="d")["set_up_count"] == 2
    assert beside.result(timeout=20)["kind"] == "value"
    session.objects.cancel(everything=True)
    wait_until(lambda: executor.pid is None and other.pid is None, 10, "idle processes end")
    assert executor.call("echo", 1)["kind"] == "cancelled"


@pytest.mark.drill
def test_lease(session: Session) -> None:
    key = f"{session.objects.prefix}/lease"
    session.objects.put("lease", {"count": 1})
    executors = [session.executor(f"ex-{number}", lease_key=key, lease_s=0.9) for number in range(2)]
    idle = executors[1].value("pid")
    running = executors[0].begin("sleep", 600)
    for count in range(2, 5):
        time.sleep(0.3)
        session.objects.put("lease", {"count": count})
    assert not running.done()
    reply = running.result(timeout=20)
    assert reply["kind"] == "lease"
    assert "not renewed for 0.9 s" in reply["message"]
    wait_until(lambda: not is_running(idle), 10, "the idle process ends")
    assert executors[0].call("echo", 1)["kind"] == "lease"
    session.objects.put("lease", {"count": 9})
    assert executors[0].value("echo", 1) == 1
    session.objects.delete("lease")
    wait_until(lambda: executors[0].pid is None, 10, "a lease that is gone has lapsed")


def test_lease_decisions() -> None:
    lease = Lease(30.0)
    assert [lease.observe(7, now) for now in (0.0, 10.0, 20.0, 30.0)] == [False, False, False, True]
    assert not lease.observe(8, 31.0)
    lease.look_failed()
    assert not lease.observe(8, 900.0)  # the cache was away
    assert not lease.observe(8, 2000.0)  # we were: at most half the lease counts
    assert lease.observe(None, 2020.0)
    assert lease.observe(None, 2021.0)
    assert not lease.observe(1, 2022.0)


def test_cancel_decisions() -> None:
    cancel = {"all": False, "calls": ["a"], "generations": ["g"]}
    assert cancelled_text(cancel, "a", None)
    assert cancelled_text(cancel, None, "g")
    assert cancelled_text(cancel, "b", "h") is None
    assert cancelled_text({"all": True}, None, None)
    assert cancelled_text({}, "a", "g") is None


@pytest.mark.drill
def test_a_cache_that_is_away(cache: ObjectCache, tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        session = make_session(cache, tmp_path)
        places = {"nothing": "grpc://127.0.0.1:9", "deaf": f"grpc://127.0.0.1:{deaf.getsockname()[1]}"}
        for name, endpoint in places.items():
            session.executor(name, cache_endpoint=endpoint, lease_key="a/b/lease", lease_s=0.6).value("echo", 1)
        running = [executor.begin("sleep", 1.5) for executor in session.executors]
        assert [call.result()["kind"] for call in running] == ["value", "value"]
        for fields in ({"method": "@join", "generation": "g"}, {"method": "sleep", "generation": "g"}):
            waiting = [executor.begin(**fields, seconds=1.0) for executor in session.executors]
            assert [call.result(timeout=10)["kind"] for call in waiting] == ["deadline", "deadline"]
        session.end()
