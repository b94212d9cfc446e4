"""What the cluster costs: `python -m tests.benchmarks.bench_cluster [--quick]`; nothing is trained, nothing is compared
by the clock of another machine: each figure stands beside its measure of the same minute.

Targets are those of two quiet cores. `--quick` leaves out the long part (10,000 calls, 2,000 objects).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from seeker.cluster import wire
from seeker.cluster.client import Cluster, ClusterSettings, Service, gather, open_cluster
from seeker.cluster.objects import FlightObjects
from seeker.cluster.shipping import code_of
from seeker.cluster.starter.host import Host
from tests.benchmarks.grpc_echo import async_echo_server, echo_server
from tests.benchmarks.processes import Usage, cpu_seconds, usage_of
from tests.cluster.conftest import descendants

ECHO = "tests.cluster.services:Echo"
EXECUTOR_MODULES, CHILD_MODULES = "seeker.cluster.wire, pyarrow.flight", "tests.cluster.services, seeker.cluster.child"
LARGE_BYTES = 200_000_000
ROOT = str(Path(__file__).resolve().parents[2])
console = Console(highlight=False, soft_wrap=True)


def main(arguments: list[str]) -> None:
    starts = [_started() for _ in range(3)]
    _print("cluster start", median(starts), "s", 1.0)
    with open_cluster(ClusterSettings(run_id="bench")) as cluster:
        _executor_start(cluster)
        with cluster.start("echo", ECHO, {}, executors=1) as service:
            service.call("echo", 0, deadline_s=60).result()
            with _by_grpc(cluster) as by_grpc:
                _round_trip(service, by_grpc)
            _parts(cluster, service)
            _pipelined(service)
            _child_overhead(cluster)
        _large_objects(cluster)
        if "--quick" not in arguments:
            _many_calls(cluster)
            _many_objects(cluster)


def _print(what: str, value: float, unit: str, target: float | None = None) -> None:
    scale, shown = (1000.0, "ms") if unit == "ms" else (1.0, unit)
    note = "" if target is None else f"  (target {target * scale:g}{shown and ' ' + shown}{_missed(value, target)})"
    console.print(f"{what:<64} {value * scale:9.3f} {shown}{note}")


def _missed(value: float, target: float) -> str:
    return "" if value <= target else ": MISSED"


def _started() -> float:
    begin = time.perf_counter()
    with open_cluster(ClusterSettings()):
        return time.perf_counter() - begin


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median of single timings."""
    timings: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        timings.append(time.perf_counter() - begin)
    return median(timings)


def _executor_start(cluster: Cluster) -> None:
    """From opening the session to the first answer: of the starter, and of the service in its child."""
    python = cluster.settings.executor_python()

    def imported(modules: str) -> float:
        line = [python, "-c", f"import sys; sys.path.insert(0, {ROOT!r}); import {modules}"]
        return _seconds(lambda: subprocess.run(line, check=True), 1)

    def started(method: str) -> float:
        begin = time.perf_counter()
        with cluster.start("start", ECHO, {}, executors=1) as service:
            service.call(method, deadline_s=60).result()
            return time.perf_counter() - begin

    runs = [
        (imported(EXECUTOR_MODULES), imported(CHILD_MODULES), started("@about"), started("about")) for _ in range(5)
    ]
    executor, child, answered, served = (median(column) for column in zip(*runs, strict=True))
    console.print(f"imports, interpreter included: executor {executor:.2f} s, child {child:.2f} s")
    _print(f"executor start {answered:.2f} s, minus its imports", answered - executor, "s", 0.5)
    _print(f"executor and child start {served:.2f} s, minus their imports", served - executor - child, "s", 0.5)


@contextmanager
def _by_grpc(cluster: Cluster) -> Generator[Service]:
    """A service of the same cluster, to a driver that knows it by its address, as it knows a real one."""
    address = {"endpoint": cluster.endpoint, "cache_endpoint": cluster._flight.endpoint}
    settings = ClusterSettings(run_id="bench-grpc", **address)
    with open_cluster(settings) as named, named.start("echo-grpc", ECHO, {}, executors=1) as service:
        service.call("echo", 0, deadline_s=60).result()
        yield service


def _round_trip(service: Service, by_grpc: Service) -> None:
    def call_of(each: Service) -> Callable[[], Any]:
        return lambda: each.call("echo", 0, deadline_s=60).result()

    with echo_server() as echo, async_echo_server() as async_echo:
        echoes: list[Callable[[], Any]] = [lambda: echo(b"x" * 300), lambda: async_echo(b"x" * 300)]
        works = [call_of(service), call_of(by_grpc), *echoes]
        for work in works * 50:
            work()
        # Turn by turn: all meet the same neighbours.
        turns = [[_seconds(work, 1) for work in works] for _ in range(300)]
    ours, ours_by_grpc, bare, bare_async = (median(column) for column in zip(*turns, strict=True))
    _print("sequential call to the embedded cluster, median of 300", ours, "ms", 0.008)
    _print("the same by its address: two of three requests by gRPC", ours_by_grpc, "ms", 0.008)
    _print("bare gRPC echo over a unix socket, blocking, median of 300", bare, "ms")
    _print("bare gRPC echo over a unix socket, asyncio, median of 300", bare_async, "ms")
    _print("ratio of a call to the blocking echo", ours / bare, "", 2.5)
    _print("ratio of a call to the asyncio echo", ours / bare_async, "", 2.5)
    _print("ratio of a call by address to the blocking echo", ours_by_grpc / bare, "")
    _print("ratio of a call by address to the asyncio echo", ours_by_grpc / bare_async, "")


def _pipelined(service: Service) -> None:
    begin = time.perf_counter()
    calls = [service.call("echo", number, deadline_s=120) for number in range(200)]
    for each in gather(calls, 120):
        each.result()
    _print("200 pipelined calls", time.perf_counter() - begin, "s")


def _parts(cluster: Cluster, service: Service) -> None:
    """Where a call's time goes. It is three requests: creating and watching the task, and invoking the executor."""
    nodes = wire.frontend.ListNodesRequest()
    single = _seconds(lambda: cluster._frontend.request("ListNodes", nodes), 200)
    _print("  one request to the cluster that does nothing (a call is three)", single, "ms")
    embedded = cluster._embedded
    family = {"driver": [os.getpid()], "cluster": [embedded.process.pid], "executor and child": executors_of(embedded)}
    before = {who: sum(map(cpu_seconds, pids)) for who, pids in family.items()}
    for _ in range(500):
        service.call("echo", 0, deadline_s=60).result()
    for who, pids in family.items():
        _print(f"  processor time of a call: {who}", (sum(map(cpu_seconds, pids)) - before[who]) / 500, "ms")


def _child_overhead(cluster: Cluster) -> None:
    """What the starter adds to a method: calls of a host in this process, whose child has nothing to do."""
    setup = {"name": "bench", "target": ECHO, "config": {}, "prefix": "bench/child", "log_dir": None}
    setup |= {"cache_endpoint": cluster._flight.endpoint, "cancel_key": "bench/child/cancel"}
    setup["code"] = code_of(ECHO).to_setup(cluster._flight.endpoint, ())
    host = Host(setup, "bench", is_executor=False)
    request = {"method": "echo", "arguments": pickle.dumps(((0,), {})), "seconds": 60.0}
    assert host.call(request)["kind"] == "value"
    _print("child overhead per call, median of 300", _seconds(lambda: host.call(request), 300), "ms", 0.001)
    host.end()


def _large_objects(cluster: Cluster) -> None:
    data = np.random.default_rng(0).integers(0, 255, LARGE_BYTES, dtype=np.uint8)
    copied = _seconds(lambda: data.copy(), 5)
    _print("200 MB copied in memory", copied, "s")
    puts, gets = [], []
    for _ in range(3):
        begin = time.perf_counter()
        handle = cluster.objects.put("bench/large", data)
        middle = time.perf_counter()
        back = cluster.objects.get(handle)
        gets.append(time.perf_counter() - middle)
        puts.append(middle - begin)
        assert np.array_equal(np.frombuffer(back, np.uint8), data)
        del back
        cluster.objects.delete("bench/large")
    for what, timings in (("put", puts), ("get", gets)):
        _print(f"200 MB object {what}, {median(timings) / copied:.1f} times a copy", median(timings), "s")


def _many_calls(cluster: Cluster) -> None:
    with cluster.start("many", ECHO, {}, executors=2) as service:

        def batch(number: int) -> None:
            for _ in range(number // 50):
                for call in gather([service.call("echo", 0, deadline_s=120) for _ in range(50)], 120):
                    call.result()

        batch(1000)
        before = _usages(cluster)
        begin = time.perf_counter()
        batch(9000)
        _flat("9,000 small calls after the first 1,000", before, _usages(cluster))
        _print("calls a second, two executors", 9000 / (time.perf_counter() - begin), "")


def _many_objects(cluster: Cluster) -> None:
    objects = FlightObjects(cluster.describe()["cache_endpoint"])

    def put(number: int) -> None:
        for _ in range(number):
            handle = objects.put("bench/many", b"x" * 20_000)
            objects.append(handle, b"y" * 2_000)
            objects.get(handle)
            objects.delete(handle.key)

    put(1000)
    before = _usages(cluster)
    put(1000)
    _flat("1,000 objects after the first 1,000", before, _usages(cluster))
    objects.close()


def executors_of(embedded: Any) -> list[int]:
    return sorted(descendants(embedded.process.pid))


def _usages(cluster: Cluster) -> dict[str, Usage]:
    embedded = cluster._embedded
    return {"driver": usage_of(os.getpid()), "cluster": usage_of(embedded.process.pid)}


def _flat(what: str, before: dict[str, Usage], after: dict[str, Usage]) -> None:
    for who, then in before.items():
        now = after[who]
        mib = [round(usage.resident_bytes / 2**20) for usage in (then, now)]
        _print(f"{what}: {who}, MiB {mib[0]} -> {mib[1]}", now.resident_bytes / then.resident_bytes, "", 1.1)
        _print(f"{what}: {who}, files {then.num_open} -> {now.num_open}", now.num_open / then.num_open, "", 1.1)


if __name__ == "__main__":
    main(sys.argv[1:])
