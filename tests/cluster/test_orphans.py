"""Pinned: no process and no socket outlives its owner by more than 5 seconds.

1. The driver killed with -9: cluster, executors and service processes end.
2. The driver interrupted by Ctrl-C: the same, in order.
3. The cluster's process killed with -9: executors and service processes end, and its directory is removed by the
   client's close or by the next cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seeker.cluster.client import ClusterSettings, open_cluster
from tests.cluster.conftest import descendants, is_running, wait_until

DRIVER = """
import json, time
from seeker.cluster.client import ClusterSettings, open_cluster
with open_cluster(ClusterSettings(log_dir="logs")) as cluster:
    service = cluster.start("x", "tests.cluster.services:Echo", {}, executors=1)
    about = service.call("about", deadline_s=60).result()
    call = service.call("sleep", 600, deadline_s=600)
    print(json.dumps({"root": str(cluster._embedded.root), **about}), flush=True)
    call.result()
"""


def _start_driver(tmp_path: Path) -> tuple[subprocess.Popen[str], dict, set[int]]:
    root = str(Path(__file__).resolve().parents[2])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    told = json.loads(driver.stdout.readline())
    family = descendants(driver.pid)
    assert {told["pid"], told["parent"]} <= family
    assert len(family) >= 3
    return driver, told, family


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_driver_ends(tmp_path: Path, signum: signal.Signals) -> None:
    driver, told, family = _start_driver(tmp_path)
    driver.send_signal(signum)
    driver.wait(timeout=10)
    wait_until(lambda: not any(map(is_running, family)), 5, "every process of the driver ends")
    wait_until(lambda: not os.path.exists(told["root"]), 5, "the private directory is gone")


def test_cluster_process_is_killed() -> None:
    with open_cluster(ClusterSettings()) as cluster:
        service = cluster.start("x", "tests.cluster.services:Echo", {}, executors=2)
        service.call("about", deadline_s=60).result()
        process = cluster._embedded.process
        root = cluster._embedded.root
        family = descendants(process.pid)
        assert len(family) >= 3
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, family)), 5, "every executor ends")
        assert root.exists()
    assert not root.exists()
