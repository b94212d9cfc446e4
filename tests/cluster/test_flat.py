"""Pinned: nothing piles up. Memory of driver and cluster, and their open files, stay within 10 % after a warm-up.

1. 10,000 small calls.
2. 2,000 objects put, appended to, read and deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from seeker.cluster.client import Cluster, ClusterSettings, gather, open_cluster
from tests.benchmarks.processes import usage_of


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_calls_and_objects_leave_nothing() -> None:
    with open_cluster(ClusterSettings(slots=2)) as cluster:
        with cluster.start("x", "tests.cluster.services:Echo", {}, executors=2) as service:

            def call(number: int) -> None:
                for _ in range(number // 50):
                    for each in gather([service.call("echo", 0, deadline_s=120) for _ in range(50)], 120):
                        each.result()

            _is_flat(cluster, call, 1000, 9000)

        def put(number: int) -> None:
            for _ in range(number):
                handle = cluster.objects.put("flat/s", b"x" * 20_000)
                cluster.objects.append(handle, b"y" * 2_000)
                cluster.objects.get(handle)
                cluster.objects.delete(handle.key)

        _is_flat(cluster, put, 1000, 1000)


def _is_flat(cluster: Cluster, work: Callable[[int], None], num_before: int, num_after: int) -> None:
    assert cluster._embedded is not None
    pids = {"driver": os.getpid(), "cluster": cluster._embedded.process.pid}
    work(num_before)
    before = {who: usage_of(pid) for who, pid in pids.items()}
    work(num_after)
    for who, pid in pids.items():
        now = usage_of(pid)
        assert now.resident_bytes < before[who].resident_bytes * 1.1, who
        assert now.num_open <= before[who].num_open * 1.1 + 1, who
