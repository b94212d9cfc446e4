"""Pinned behaviour of services and calls, on the embedded cluster with real processes.

1.  A service is set up once per executor, with its config, its environment and its interpreter, and stays warm.
2.  Values, keyword arguments and None travel unchanged; results come as they complete.
3.  More than ten outstanding calls do not delay each other's news.
4.  A method that raises is a `CallError` with the remote type, message and traceback; the service stays warm. So is
    a value that cannot be unpickled here.
5.  Private and unknown methods are refused.
6.  Arguments and results above 128 KiB are `PayloadError`, with size and remedy; objects carry large data both ways.
    So are arguments that cannot be pickled.
7.  Calls leave no result objects behind; closing a service leaves no object of its session and no executor.
8.  Bad requests are refused before anything is submitted; so is a call without a finite deadline.
9.  `gather` past its deadline names what is outstanding.
10. A gang's executors come up together.
11. An embedded cluster that ends while it is being connected to is named as the cause, with its exit code.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from seeker.cluster.client import Cluster, ClusterSettings, Service, connect, gather
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.objects import ObjectHandle
from seeker.errors import CallError, ClusterError, ConfigError, DeadlineError, PayloadError
from tests.cluster.conftest import object_keys, wait_until

ECHO = "tests.cluster.services:Echo"


@pytest.fixture(scope="module")
def echo(cluster: Cluster) -> Iterator[Service]:
    with cluster.start("echo", ECHO, {"depth": {"a": [1, None]}}, executors=2, env={"OMP_NUM_THREADS": "1"}) as service:
        yield service


def test_set_up_once_and_warm(cluster: Cluster, echo: Service) -> None:
    first = echo.call("about", deadline_s=30).result()
    assert first["config"] == {"depth": {"a": [1, None]}}
    assert first["threads"] == "1"
    assert first["python"] == cluster.settings.executor_python()
    assert first["prefix"] == echo.prefix
    calls = [echo.call("about", deadline_s=30) for _ in range(20)]
    told = [call.result() for call in gather(calls, 30)] + [first]
    assert {each["set_up_count"] for each in told} == {1}
    assert 1 <= len({each["pid"] for each in told}) == len({each["executor"] for each in told}) <= 2
    assert {call.executor for call in calls} <= {each["executor"] for each in told}
    assert all(call.num_retries == 0 for call in calls)


@pytest.mark.parametrize("value", [None, 0, "text", b"\x00raw", {"a": (1, 2)}, [1.5], b"\x05\x00\x00\x00\x00"])
def test_values_travel(echo: Service, value: object) -> None:
    assert echo.call("echo", value, deadline_s=30).result() == value


def test_keywords(echo: Service) -> None:
    assert echo.call("echo", 1, deadline_s=30, step=3).result() == (1, {"step": 3})


def test_many_outstanding_calls_do_not_delay_each_other(echo: Service) -> None:
    slow = [echo.call("sleep", 0.2, deadline_s=60) for _ in range(12)]
    fast = echo.call("echo", "fast", deadline_s=60)
    more = [echo.call("sleep", 0.2, deadline_s=60) for _ in range(4)]
    order = [call.label for call in gather([*slow, fast, *more], 60)]
    assert len(order) == 17
    assert order.index(fast.label) < order.index(more[1].label)
    assert fast.result() == "fast"


def test_remote_errors(echo: Service) -> None:
    before = echo.call("about", deadline_s=30).result()["set_up_count"]
    with pytest.raises(CallError, match="ValueError: no such town") as caught:
        echo.call("fail", "no such town", deadline_s=30).result()
    assert caught.value.remote_type == "ValueError"
    assert "services.py" in caught.value.remote_traceback
    assert echo.call("about", deadline_s=30).result()["set_up_count"] == before


def test_a_value_that_is_not_known_here(echo: Service) -> None:
    with pytest.raises(CallError, match="its value cannot be unpickled here: ModuleNotFoundError"):
        echo.call("elsewhere", deadline_s=30).result()
    assert echo.call("echo", 1, deadline_s=30).result() == 1


@pytest.mark.parametrize("method", ["missing", "_answer", "config"])
def test_only_public_methods(echo: Service, method: str) -> None:
    with pytest.raises(CallError, match=f"no public method '{method}'"):
        echo.call(method, deadline_s=30).result()


def test_payload_limits(echo: Service) -> None:
    with pytest.raises(PayloadError, match=r"131\d\d\d bytes .* put large data as an object"):
        echo.call("echo", b"x" * 131_072, deadline_s=30)
    assert echo.call("echo", b"x" * 130_000, deadline_s=30).result() == b"x" * 130_000
    with pytest.raises(PayloadError, match="put an object and return its handle"):
        echo.call("large", 200_000, deadline_s=30).result()
    with pytest.raises(PayloadError, match=r"echo\.echo: its arguments cannot be pickled: .* pass plain data"):
        echo.call("echo", lambda: None, deadline_s=30)


def test_objects_carry_large_data(cluster: Cluster, echo: Service) -> None:
    handle = ObjectHandle(**echo.call("put", 1_000_000, deadline_s=30).result())
    assert handle.key.startswith(echo.prefix)
    assert bytes(cluster.objects.get(handle)) == bytes(1_000_000)
    assert echo.call("read", handle.to_json(), deadline_s=30).result() == 1_000_000
    cluster.objects.delete(handle.key)


def test_nothing_is_left_behind(cluster: Cluster) -> None:
    service = cluster.start("brief", ECHO, {}, resources="mem=64m", executors=1)
    for call in gather([service.call("echo", number, deadline_s=30) for number in range(5)], 30):
        call.result()
    endpoint = cluster.describe()["cache_endpoint"]
    own = [f"{service.prefix}/{name}" for name in ("context", "parked")]
    wait_until(lambda: object_keys(endpoint, service.prefix) == own, 5, "results are deleted")
    pid = service.call("about", deadline_s=30).result()["parent"]
    service.close()
    service.close()
    assert object_keys(endpoint, service.prefix) == []
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 5, "the executor ends")
    with pytest.raises(ClusterError, match="is closed"):
        service.call("echo", 1, deadline_s=1)


def test_bad_requests(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"package\.module:Class"):
        cluster.start("x", "no_colon", {})
    for name in ("a/b", "", "n" * 101):
        with pytest.raises(ConfigError, match="expected letters, digits, _ and -, at most 100"):
            cluster.start(name, ECHO, {})
    with pytest.raises(ConfigError, match="travels as JSON"):
        cluster.start("x", ECHO, {"bad": object()})
    for release_s in (0, -1):
        with pytest.raises(ConfigError, match=r"release_s is .* expected whole seconds, 1 or more"):
            cluster.start("x", ECHO, {}, release_s=release_s)
    wrong: list[dict[str, Any]] = [{"A": 1}, {"A=B": "x"}, {"A": "x\0y"}]
    for env in wrong:
        with pytest.raises(ConfigError, match=r"service x: env 'A.* expected texts without a zero byte"):
            cluster.start("x", ECHO, {}, env=env)
    with pytest.raises(ClusterError, match="asks for 17 executors"):
        cluster.start("x", ECHO, {}, executors=17)
    with pytest.raises(ClusterError, match=r"cluster\.slots"):
        cluster.start("x", ECHO, {}, resources="cpu=64")


@pytest.mark.parametrize("deadline_s", [math.inf, math.nan])
def test_every_call_has_a_deadline(echo: Service, deadline_s: float) -> None:
    with pytest.raises(ConfigError, match=r"echo\.echo#\d+: deadline_s is (inf|nan), expected a number of seconds"):
        echo.call("echo", 1, deadline_s=deadline_s)


def test_gather_past_its_deadline(echo: Service) -> None:
    call = echo.call("sleep", 1.0, deadline_s=30)
    with pytest.raises(DeadlineError, match=r"1 of 1 calls not done within 0.2 s: echo.sleep#\d+"):
        list(gather([call], 0.2))
    with pytest.raises(DeadlineError, match="is not done after a wait"):
        call.result(deadline_s=0.01)
    assert call.result() == 1.0


def test_gang_comes_up_together(cluster: Cluster) -> None:
    before = len(cluster.executors())
    with cluster.start("gang", ECHO, {}, resources="mem=64m", executors=3, gang=True):
        wait_until(lambda: len(cluster.executors()) > before, 5, "the gang's executors")
        assert len(cluster.executors()) == before + 3


def test_sequential_calls_are_quick(echo: Service) -> None:
    echo.call("echo", 0, deadline_s=30).result()
    times = []
    for number in range(30):
        start = time.perf_counter()
        echo.call("echo", number, deadline_s=30).result()
        times.append(time.perf_counter() - start)
    assert sorted(times)[15] < 0.1  # some 6 ms on a quiet machine


def test_an_embedded_cluster_that_ends_while_it_is_connected_to() -> None:
    settings = ClusterSettings(connect_deadline_s=3.0)
    embedded = EmbeddedCluster(settings)
    try:
        address = embedded.wait_ready(30.0)
        embedded.process.kill()
        with pytest.raises(ClusterError, match="the embedded cluster has ended: exit code -9"):
            connect(settings, address, embedded)
    finally:
        embedded.stop()
