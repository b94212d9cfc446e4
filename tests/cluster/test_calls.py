"""Pinned: cancelling, growing and shrinking, many calls, and watches that break.

1.  A cancelled call ends at once for its caller, its process within two seconds; the executor and other calls go on.
    One that waits in the queue is cancelled without ever being begun.
2.  An elastic service goes from one executor to its maximum under calls, never above it, and back when it is quiet.
3.  200 calls at once, and hundreds in turn, leave the number of threads, objects and open files as it was.
4.  Connections that drop in the middle of a call, again and again, cost no call its result; a session manager that is
    away for a while costs nothing but the while.
5.  A call past its deadline says what the cluster shows of its session's executors.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seeker.cluster.calls import CancelledCallError
from seeker.cluster.client import Cluster, ClusterSettings, Service, gather, open_cluster
from seeker.errors import DeadlineError
from tests.cluster.conftest import is_running, object_keys, wait_until
from tests.cluster.relay import Relay

ECHO = "tests.cluster.services:Echo"
SMALL = "mem=64m"


@pytest.fixture(scope="module")
def echo(cluster: Cluster) -> Iterator[Service]:
    with cluster.start("echo", ECHO, {}, resources=SMALL) as service:
        yield service


def test_cancel(echo: Service, tmp_path: Path) -> None:
    before = echo.call("about", deadline_s=30).result()
    running = echo.call("sleep", 60, deadline_s=90)
    waiting = echo.call("kill_self", str(tmp_path / "began"), deadline_s=90)
    after = echo.call("about", deadline_s=30)
    time.sleep(0.2)
    start = time.monotonic()
    waiting.cancel()
    running.cancel()
    for call in (running, waiting):
        with pytest.raises(CancelledCallError, match=r"echo\.\w+#\d+ was cancelled"):
            call.result(deadline_s=0.1)
    told = after.result()
    assert time.monotonic() - start < 4
    assert not is_running(before["pid"])
    assert told["executor"] == before["executor"]
    assert not (tmp_path / "began").exists()
    running.cancel()
    after.cancel()
    assert after.result() == told


@pytest.mark.drill
def test_elastic(cluster: Cluster) -> None:
    service = cluster.start(
        "elastic", ECHO, {}, resources=SMALL, executors=1, elastic=True, max_executors=4, release_s=1
    )
    session = service.prefix.partition("/")[2]
    number = lambda: sum(each["session"] == session for each in cluster.executors())  # noqa: E731
    wait_until(lambda: number() == 1, 10, "the warm minimum")
    calls = [service.call("sleep", 1.0, deadline_s=90) for _ in range(14)]
    seen = set()
    while not all(call.done() for call in calls):
        seen.add(number())
        time.sleep(0.02)
    assert max(seen) == 4
    assert len({call.executor for call in calls}) == 4
    wait_until(lambda: number() == 1, 20, "back at the minimum")
    service.close()
    wait_until(lambda: number() == 0, 10, "none after closing")


def test_many_calls_leave_nothing(cluster: Cluster, echo: Service) -> None:
    for call in gather([echo.call("echo", number, deadline_s=60) for number in range(200)], 60):
        call.result()
    files, threads = _num_files(), threading.active_count()
    calls = [echo.call("echo", number, deadline_s=60) for number in range(200)]
    assert threading.active_count() <= threads + 1
    assert sorted(call.result() for call in gather(calls, 60)) == list(range(200))
    for number in range(200):
        assert echo.call("echo", number, deadline_s=30).result() == number
    assert threading.active_count() <= threads + 1
    assert _num_files() <= files + 4
    keys = lambda: object_keys(cluster.describe()["cache_endpoint"], echo.prefix)  # noqa: E731
    wait_until(lambda: len(keys()) <= 3, 5, "results are deleted")


def _num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.drill
def test_connections_that_drop(cluster: Cluster) -> None:
    with Relay(cluster.endpoint) as relay:
        settings = ClusterSettings(
            endpoint=relay.endpoint, cache_endpoint=cluster.describe()["cache_endpoint"], run_id="relayed"
        )
        with open_cluster(settings) as relayed:
            service = relayed.start("far", ECHO, {}, resources=SMALL, executors=2)
            assert service.call("echo", 1, deadline_s=30).result() == 1
            calls = [service.call("sleep", 0.5, deadline_s=60, idempotent=True) for _ in range(8)]
            while not all(call.done() for call in calls):
                time.sleep(0.3)
                relay.drop()
            assert [call.result() for call in calls] == [0.5] * 8
            assert service.call("echo", 1, deadline_s=30, idempotent=True).result() == 1  # connected again
            slow = service.call("sleep", 1.0, deadline_s=30)
            time.sleep(0.3)
            relay.pause(2.0)
            assert service.call("echo", 2, deadline_s=30, idempotent=True).result() == 2
            assert slow.result() == 1.0
            assert slow.num_retries == 0


def test_a_deadline_tells_what_the_cluster_shows(cluster: Cluster) -> None:
    with cluster.start("stuck", "tests.cluster.services:Sleeper", {}, resources=SMALL) as service:
        first = service.call("echo", 1, deadline_s=60)
        waiting = service.call("echo", 2, deadline_s=1.0)
        with pytest.raises(DeadlineError, match=r"calls pending, . running; 1 executor in B\w+ for \d+ s of 1 x cpu=1"):
            waiting.result()
        first.cancel()
