"""Pinned behaviour when things break.

1.  A service process that dies fails its call with reason and log; the executor lives and starts another.
2.  An idempotent call whose service process or executor is lost is done again, counted, at most twice.
3.  A lost executor fails its call at once and is replaced.
4.  A call past its deadline is killed and reported with the service's log; the next call finds a new process.
5.  A constructor that raises is a `CallError` with its traceback at every call; one that hangs ends by deadline.
6.  An environment that cannot start surfaces within seconds, with the executor's log.
7.  A service that waits for room says so when its call's deadline passes. Closing with a call running ends that call
    and the close within seconds; closing the embedded cluster ends all calls.
8.  A dead endpoint fails within the connect deadline, with the address and the remedy.
9.  A cluster that dies under a call fails it; opening another afterwards works.
10. A missing target is named.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from seeker.cluster.calls import CancelledCallError, LostError
from seeker.cluster.client import Cluster, ClusterSettings, open_cluster
from seeker.errors import CallError, ClusterError, ConfigError, DeadlineError
from tests.cluster.conftest import wait_until

ECHO = "tests.cluster.services:Echo"
SMALL = "mem=64m"


@pytest.fixture(scope="module")
def echo(cluster: Cluster):
    with cluster.start("echo", ECHO, {}, resources=SMALL) as service:
        yield service


def test_service_process_dies(echo) -> None:
    before = echo.call("about", deadline_s=30).result()
    with pytest.raises(LostError, match=r"kill_self: the service process was killed by SIGKILL") as caught:
        echo.call("kill_self", deadline_s=30).result()
    assert "last words" in str(caught.value)
    after = echo.call("about", deadline_s=30).result()
    assert after["executor"] == before["executor"]
    assert after["set_up_count"] == before["set_up_count"] + 1
    assert after["num_calls"] == 1


def test_idempotent_call_is_done_again(echo, tmp_path: Path) -> None:
    call = echo.call("kill_self", str(tmp_path / "once"), deadline_s=30, idempotent=True)
    assert call.result() == "survived"
    assert call.num_retries == 1


def test_retries_are_bounded(echo) -> None:
    call = echo.call("kill_self", deadline_s=30, idempotent=True)
    with pytest.raises(LostError):
        call.result()
    assert call.num_retries == 2


def test_executor_dies(cluster: Cluster, echo, tmp_path: Path) -> None:
    executor = echo.call("about", deadline_s=30).result()["executor"]
    start = time.monotonic()
    with pytest.raises(LostError, match=r"transport error: executor <.*>: the process was killed by SIGKILL"):
        echo.call("kill_executor", str(tmp_path / "a"), deadline_s=30).result()
    assert time.monotonic() - start < 3
    call = echo.call("kill_executor", str(tmp_path / "b"), deadline_s=30, idempotent=True)
    assert call.result() == "survived"
    assert call.num_retries == 1
    assert call.executor != executor


def test_deadline_kills_the_service_process(echo) -> None:
    before = echo.call("about", deadline_s=30).result()
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"echo.sleep did not finish within its deadline and was killed"):
        echo.call("sleep", 60, deadline_s=1.0).result()
    assert time.monotonic() - start < 3
    after = echo.call("about", deadline_s=30).result()
    assert after["executor"] == before["executor"]
    assert after["set_up_count"] == before["set_up_count"] + 1
    assert not os.path.exists(f"/proc/{before['pid']}")


def test_deadline_covers_the_queue(echo) -> None:
    echo.call("echo", 0, deadline_s=30).result()
    first = echo.call("sleep", 1.5, deadline_s=30)
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        echo.call("sleep", 6.0, deadline_s=2.0).result()
    assert time.monotonic() - start < 5
    assert first.result() == 1.5


def test_constructor_that_raises(cluster: Cluster) -> None:
    with cluster.start("broken", "tests.cluster.services:Broken", {}, resources=SMALL) as service:
        for _ in range(2):
            with pytest.raises(CallError, match="RuntimeError: no engine on this machine") as caught:
                service.call("echo", 1, deadline_s=30).result()
            assert caught.value.remote_type == "RuntimeError"
            assert "services.py" in caught.value.remote_traceback


@pytest.mark.drill
def test_constructor_that_hangs(cluster: Cluster) -> None:
    service = cluster.start("sleeper", "tests.cluster.services:Sleeper", {}, resources=SMALL)
    with service, pytest.raises(DeadlineError, match="setting up sleeper did not finish"):
        service.call("echo", 1, deadline_s=2.5).result()


def test_missing_target(cluster: Cluster) -> None:
    service = cluster.start("x", "tests.cluster.services:Nothing", {}, resources=SMALL)
    with service, pytest.raises(CallError, match="Nothing"):
        service.call("echo", 1, deadline_s=30).result()


@pytest.mark.drill
def test_environment_that_cannot_start(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named flamepy\nexit 3\n")
    python.chmod(0o755)
    with open_cluster(ClusterSettings(python=str(python))) as cluster:
        service = cluster.start("x", ECHO, {})
        start = time.monotonic()
        with pytest.raises(ClusterError, match="no executor could be started") as caught:
            service.call("echo", 1, deadline_s=60).result()
        assert time.monotonic() - start < 8
        assert "exited with code 3 before it opened its socket" in str(caught.value)
        assert "no module named flamepy" in str(caught.value)


def test_no_room_is_told(cluster: Cluster) -> None:
    service = cluster.start("large", ECHO, {}, resources="cpu=9,mem=64m", executors=1)
    other = cluster.start("larger", ECHO, {}, resources="cpu=9,mem=64m", executors=1)
    service.call("echo", 1, deadline_s=30).result()
    with other, service, pytest.raises(DeadlineError, match=r"1 calls pending, 0 running; no executor of 1 x cpu=9"):
        other.call("echo", 1, deadline_s=0.5).result()


def test_close_while_a_call_runs(cluster: Cluster) -> None:
    service = cluster.start("busy", ECHO, {}, resources=SMALL)
    service.call("echo", 1, deadline_s=30).result()
    running = service.call("sleep", 60, deadline_s=120)
    waiting = service.call("sleep", 60, deadline_s=120)
    time.sleep(0.3)
    start = time.monotonic()
    service.close()
    assert time.monotonic() - start < 5
    for call in (running, waiting):
        with pytest.raises(CancelledCallError):
            call.result(deadline_s=1)


@pytest.mark.drill
def test_closing_the_embedded_cluster_ends_its_calls() -> None:
    cluster = open_cluster(ClusterSettings(slots=4))
    service = cluster.start("busy", ECHO, {}, resources=SMALL)
    pair = cluster.start("pair", "tests.cluster.gang_services:Member", {}, resources=SMALL, executors=2, gang=True)
    gang = pair.form(deadline_s=60)
    calls = [service.call("sleep", 60, deadline_s=120) for _ in range(2)]
    calls += [call for _ in range(2) for call in gang.call_all("pause", 60, deadline_s=120)]
    time.sleep(1.0)
    cluster.close()
    for call in calls:
        with pytest.raises(CancelledCallError):
            call.result(deadline_s=5)
    for late in (lambda: cluster.start("late", ECHO, {}), cluster.describe):
        with pytest.raises(ClusterError, match="was closed here"):
            late()


def test_dead_endpoint() -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"http://127.0.0.1:9 within 1 s.*FLAME_ENDPOINT"):
        open_cluster(ClusterSettings(endpoint="http://127.0.0.1:9", connect_deadline_s=1.0))
    assert time.monotonic() - start < 3
    with pytest.raises(ConfigError, match="expected http://HOST:8080"):
        open_cluster(ClusterSettings(endpoint="nonsense"))


def test_cluster_dies_under_a_call() -> None:
    with open_cluster(ClusterSettings()) as cluster:
        service = cluster.start("x", ECHO, {})
        about = service.call("about", deadline_s=30).result()
        call = service.call("sleep", 60, deadline_s=60)
        time.sleep(0.2)
        start = time.monotonic()
        os.kill(cluster._embedded.process.pid, signal.SIGKILL)
        with pytest.raises(ClusterError, match="the embedded cluster has ended: exit code -9"):
            call.result()
        assert time.monotonic() - start < 3
        for pid in (about["pid"], about["parent"]):
            wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), 5, f"process {pid} ends")
        with pytest.raises(ClusterError, match="service y: the embedded cluster has ended: exit code -9"):
            cluster.start("y", ECHO, {})
        start = time.monotonic()
        service.close()
        assert time.monotonic() - start < 3
    assert cluster.abandoned == []


def test_two_clusters_one_after_the_other_and_by_endpoint(cluster: Cluster) -> None:
    settings = ClusterSettings(endpoint=cluster.endpoint, cache_endpoint=cluster.describe()["cache_endpoint"])
    with open_cluster(settings) as connected:
        assert connected.describe()["kind"] == "flame"
        service = connected.start("guest", ECHO, {}, resources=SMALL)
        assert service.call("echo", 7, deadline_s=30).result() == 7
        pid = service.call("about", deadline_s=30).result()["parent"]
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 5, "the guest's executor ends")
