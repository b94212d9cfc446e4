"""Pinned behaviour where the cluster has the real engine's faults: a dead executor must not brick it, nor may a
stranger's answer be used.

1.  A dead executor's call fails at once; its session is left, unclosed and named, and the service goes on in another.
    Calls that wait or may be done again move there, whatever the dead executor answers meanwhile.
2.  An executor that died while idle is found when its session would be closed, which is left instead.
3.  After both, another client's sessions get executors: nothing is bricked.
4.  A gang whose member's executor dies is lost with the rank's name, and forms again in another session.
5.  A stranger that the engine binds to a gang's session holds its call, another is sent, and no answer is its.
6.  What hangs or ends before it opens its socket is ended by the call's deadline, which tells what the cluster shows.
7.  The executors of a session that was left are not released while its driver lives, however short their release delay:
    releasing a dead one would brick the cluster.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seeker.cluster import wire
from seeker.cluster.calls import LostError
from seeker.cluster.client import Cluster, ClusterSettings, gather, open_cluster
from seeker.cluster.session import pickle_request
from seeker.errors import DeadlineError, GangLostError
from tests.cluster.conftest import is_running, wait_until
from tests.cluster.served import served_cluster, settings_of

ECHO, MEMBER = "tests.cluster.services:Echo", "tests.cluster.gang_services:Member"
SMALL = "mem=64m"


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    with served_cluster("--faults", "engine", "--slots", "40") as description:
        yield description


@pytest.fixture
def engine(served: dict[str, Any]) -> Iterator[Cluster]:
    with open_cluster(settings_of(served, run_id="engine")) as cluster:
        yield cluster
    with open_cluster(settings_of(served, run_id="other")) as other:  # nothing is bricked
        assert other.start("after", ECHO, {}, resources=SMALL).call("echo", 1, deadline_s=30).result() == 1
        assert other.abandoned == []


@pytest.mark.drill
def test_a_dead_executor_is_left_behind(engine: Cluster, tmp_path: Path) -> None:
    service = engine.start("work", ECHO, {}, resources=SMALL, executors=2)
    first = service.prefix
    for call in gather([service.call("echo", number, deadline_s=60) for number in range(4)], 60):
        call.result()
    start = time.monotonic()
    victim = service.call("kill_executor", str(tmp_path / "a"), deadline_s=60)
    calls = [service.call("sleep", 0.05, deadline_s=60, idempotent=True) for _ in range(20)]
    with pytest.raises(LostError, match="transport error"):
        victim.result()
    assert time.monotonic() - start < 10
    assert [call.result() for call in calls] == [0.05] * 20
    assert service.prefix != first
    assert service.call("echo", 7, deadline_s=30).result() == 7
    (left,) = engine.abandoned
    assert first.partition("/")[2] in left
    again = service.call("kill_executor", str(tmp_path / "b"), deadline_s=60, idempotent=True)
    assert again.result() == "survived"
    assert again.num_retries == 1
    assert len(engine.abandoned) == 2


@pytest.mark.drill
def test_a_dead_executor_is_not_released(tmp_path: Path) -> None:
    with (
        served_cluster("--faults", "engine", "--slots", "40") as served,
        open_cluster(settings_of(served, run_id="engine")) as engine,
    ):
        service = engine.start("brief", ECHO, {}, resources=SMALL, executors=2, release_s=4)
        with pytest.raises(LostError, match="transport error"):
            service.call("kill_executor", str(tmp_path / "a"), deadline_s=60).result()
        assert service.call("echo", 7, deadline_s=30).result() == 7
        end = time.monotonic() + 9.0
        while time.monotonic() < end:
            with open_cluster(settings_of(served, run_id="beside")) as beside:
                after = beside.start("after", ECHO, {}, resources=SMALL)
                assert after.call("echo", 1, deadline_s=20, idempotent=True).result() == 1


@pytest.mark.drill
def test_one_that_died_while_idle(engine: Cluster) -> None:
    service = engine.start("idle", ECHO, {}, resources=SMALL)
    about = service.call("about", deadline_s=60).result()
    os.kill(about["parent"], signal.SIGKILL)
    wait_until(lambda: not is_running(about["parent"]), 5, "the executor is dead")
    service.close()
    (left,) = engine.abandoned
    assert service.prefix.partition("/")[2] in left
    assert "an executor is dead and still there" in left


@pytest.mark.drill
def test_a_gang_that_loses_an_executor(engine: Cluster) -> None:
    service = engine.start("gang", MEMBER, {}, resources=SMALL, executors=2, gang=True)
    gang = service.form(deadline_s=60)
    start = time.monotonic()
    with pytest.raises(GangLostError, match=r"rank 1 \(executor .*transport error") as caught:
        gang.run("die", 1, "executor", deadline_s=50)
    assert caught.value.executor == gang.executors[1]
    assert time.monotonic() - start < 10
    again = service.form(deadline_s=60)
    assert not set(again.executors) & set(gang.executors)
    assert [each["rank"] for each in again.run("about", deadline_s=30)] == [0, 1]
    assert len(engine.abandoned) == 1


@pytest.mark.drill
def test_strangers_hold_their_call(engine: Cluster) -> None:
    other = engine.start("brief", ECHO, {}, resources=SMALL, executors=3)
    for call in gather([other.call("sleep", 0.2, deadline_s=60) for _ in range(3)], 60):
        call.result()
    service = engine.start("gang", MEMBER, {}, resources=SMALL, executors=2, gang=True)
    gang = service.form(deadline_s=60)
    session = service.prefix.partition("/")[2]
    long = gang.call_all("pause", 4.0, deadline_s=60)
    time.sleep(0.5)
    for _ in range(2):  # what waits makes the engine bind strangers
        _submit(engine, session, "@about")
    other.close()
    wait_until(
        lambda: sum(each["session"] == session for each in engine.executors()) > 2, 10, "the engine binds strangers"
    )
    assert [call.result() for call in long] == [4.0, 4.0]
    for number in range(1, 6):
        told = gang.run("about", deadline_s=60)
        assert [each["executor"] for each in told] == list(gang.executors)
        assert [each["num_calls"] for each in told] == [number, number]
        assert {each["generation"] for each in told} == {gang.generation}
    assert set(service._session.watch.parked.values()), "no stranger came to a call"


def _submit(cluster: Cluster, session: str, method: str) -> None:
    message = {"method": method, "arguments": b"", "seconds": 60.0, "end": None, "call": "", "generation": None}
    task = wire.types.TaskSpec(session_id=session, input=pickle_request({**message, "barrier": None}))
    cluster._frontend.request("CreateTask", wire.frontend.CreateTaskRequest(task=task))


@pytest.mark.drill
def test_what_never_binds(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with open_cluster(ClusterSettings(python=str(python), faults="engine")) as cluster:
        service = cluster.start("never", ECHO, {}, resources=SMALL)
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=r"\d+ executors? in Binding for \d+ s"):
            service.call("echo", 1, deadline_s=3.0).result()
        assert time.monotonic() - start < 8
