"""Drills: each kind of death once, and services that cannot be set up. Every call ends in time, nothing is left.

Deaths of one process: test_failures.py and test_orphans.py; of the driver of a shared cluster: test_leases.py.

1.  All executors of a service killed in the middle of its calls: those that may be done again have their value, the
    others fail at once, and the service goes on.
2.  A shared cluster killed with -9: its driver's calls end by their deadline, and so does closing; no process is left.
3.  A constructor that exits at once and a module that cannot be imported fail each call with the reason, at once; one
    that is killed while it sets up is set up again.
4.  A command that never opens its socket: the call ends by its deadline and says what the cluster shows; closing ends
    the process.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from seeker.cluster.calls import LostError
from seeker.cluster.client import Cluster, ClusterSettings, gather, open_cluster
from seeker.errors import CallError, ClusterError, DeadlineError
from tests.cluster.conftest import descendants, is_running, wait_until
from tests.cluster.served import served_cluster, settings_of
from tests.cluster.victims import victims

pytestmark = pytest.mark.drill

BROKEN = "tests.cluster.broken_services"
ECHO, SMALL = "tests.cluster.services:Echo", "mem=64m"


def test_all_executors_at_once() -> None:
    with open_cluster(ClusterSettings()) as cluster:
        process, root = cluster._embedded.process, cluster._embedded.root
        service = cluster.start("all", ECHO, {}, SMALL, executors=3)
        for _ in range(3):
            again = [service.call("sleep", 0.4, deadline_s=60, idempotent=True) for _ in range(6)]
            once = [service.call("sleep", 0.5, deadline_s=60) for _ in range(3)]
            time.sleep(1.0)
            start = time.monotonic()
            for pid in victims(process.pid)["executor"]:
                os.kill(pid, signal.SIGKILL)
            assert [call.result() for call in gather(again, 60)] == [0.4] * 6
            for call in gather(once, 60):
                assert call.error() is None or isinstance(call.error(), LostError)
            assert time.monotonic() - start < 30
        family = descendants(process.pid)
    wait_until(lambda: not any(map(is_running, family)), 5, "every process ends")
    assert not root.exists()


def test_a_shared_cluster_is_killed() -> None:
    with served_cluster() as served:
        cluster = open_cluster(settings_of(served))
        service = cluster.start("x", ECHO, {}, SMALL, executors=2)
        service.call("echo", 1, deadline_s=60).result()
        calls = [service.call("sleep", 60, deadline_s=8, idempotent=number % 2 == 0) for number in range(5)]
        time.sleep(0.5)
        family = descendants(served["pid"])
        os.kill(served["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, family)), 5, "no executor survives its cluster")
        wait_until(lambda: not Path(served["root"]).exists(), 5, "nor does its directory")
        start = time.monotonic()
        for call in gather(calls, 8 + 10):
            assert isinstance(call.error(), ClusterError)
        with pytest.raises(ClusterError):
            service.call("echo", 1, deadline_s=2).result()
        cluster.close()
        assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (
            f"{BROKEN}:Exiting",
            LostError,
            "the service process exited with code 7",
        ),
        (
            f"{BROKEN}:Killed",
            LostError,
            "the service process was killed by SIGKILL",
        ),
        ("tests.cluster.broken_module:Service", CallError, "no_such_module_anywhere"),
        ("tests.cluster.no_module:Service", CallError, "No module named 'tests.cluster.no_module'"),
    ],
)
def test_what_cannot_be_set_up(cluster: Cluster, target: str, error: type[ClusterError], text: str) -> None:
    with cluster.start("broken", target, {}, SMALL) as service:
        for idempotent in (False, True):
            start = time.monotonic()
            with pytest.raises(error, match=text):
                service.call("echo", 1, deadline_s=60, idempotent=idempotent).result()
            assert time.monotonic() - start < 30


def test_killed_while_it_sets_up(cluster: Cluster, tmp_path: Path) -> None:
    config = {"marker": str(tmp_path / "once")}
    with cluster.start("once", f"{BROKEN}:Killed", config, SMALL) as service:
        call = service.call("echo", 7, deadline_s=60, idempotent=True)
        assert call.result() == 7
        assert call.num_retries == 1


def test_a_command_that_sleeps(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 3600\n")
    python.chmod(0o755)
    with open_cluster(ClusterSettings(python=str(python))) as cluster:
        process = cluster._embedded.process
        with cluster.start("deaf", ECHO, {}, SMALL, executors=2) as service:
            start = time.monotonic()
            with pytest.raises(DeadlineError, match=r"1 calls pending, 0 running; 2 executors in Binding for \d+ s"):
                service.call("echo", 1, deadline_s=3).result()
            assert time.monotonic() - start < 8
            assert len(victims(process.pid)["executor"]) == 2
        wait_until(lambda: not victims(process.pid)["executor"], 10, "closing ends what never listened")
