"""Pinned: no process and no socket outlives its owner by more than 5 seconds.

1. The driver killed with -9: cluster, executors and service processes end.
2. The driver interrupted by Ctrl-C: the same, in order.
3. The cluster's process killed with -9: executors, service processes and what those started end, also in a process
   group of its own, and its private directory is removed.
4. The same when the guardian was killed before: the cluster starts another, which knows the living groups.
5. The guardian killed together with its cluster: the next cluster removes the directory.
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
from seeker.cluster.local.directories import make_directory, remove_stale_directories
from seeker.cluster.local.reaper import end_groups, start_time
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


@pytest.mark.drill
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_driver_ends(tmp_path: Path, signum: signal.Signals) -> None:
    driver, told, family = _start_driver(tmp_path)
    driver.send_signal(signum)
    driver.wait(timeout=10)
    wait_until(lambda: not any(map(is_running, family)), 5, "every process of the driver ends")
    wait_until(lambda: not os.path.exists(told["root"]), 5, "the private directory is gone")


@pytest.mark.parametrize("guardian", ["first", "second", "none"])
def test_cluster_process_is_killed(guardian: str, tmp_path: Path) -> None:
    with open_cluster(ClusterSettings()) as cluster:
        service = cluster.start("x", "tests.cluster.services:Echo", {}, executors=2)
        grandchild = service.call("start_process", deadline_s=60).result()
        apart = service.call("start_process", apart=True, deadline_s=60).result()
        process = cluster._embedded.process
        root = cluster._embedded.root
        family = descendants(process.pid)
        assert len(family) >= 5
        assert {grandchild, apart} <= family
        if guardian == "second":
            os.kill(_guardian(process.pid), signal.SIGKILL)
            wait_until(lambda: _guardian(process.pid) not in (*family, 0), 5, "another guardian is started")
            family.add(_guardian(process.pid))
        elif guardian == "none":
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(_guardian(process.pid), signal.SIGKILL)
            family -= {grandchild, apart}
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, family)), 5, "every process ends")
        if guardian == "none":
            for pid in (grandchild, apart):
                os.kill(pid, signal.SIGKILL)
            assert root.exists()
    assert not root.exists()


def test_directories_of_killed_clusters_are_removed_by_the_next(tmp_path: Path) -> None:
    dead, alive = make_directory(tmp_path), make_directory(tmp_path)
    os.close(dead.lock)
    foreign = tmp_path / "seeker-without-a-lock"
    foreign.mkdir()
    assert remove_stale_directories(tmp_path) == [dead.path]
    assert sorted(tmp_path.iterdir()) == sorted([alive.path, foreign])
    assert alive.path.stat().st_mode & 0o777 == 0o700
    alive.remove()
    assert not alive.path.exists()


def test_a_reused_process_number_is_spared() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        end_groups({other.pid: "1"})  # the group that was named began at another time
        assert other.poll() is None
        end_groups({other.pid: start_time(other.pid)})
        assert other.wait(timeout=5) == -signal.SIGTERM


def _guardian(cluster: int) -> int:
    """Its process, or 0."""
    for pid in descendants(cluster):
        try:
            if b"reaper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except FileNotFoundError:
            continue
    return 0
