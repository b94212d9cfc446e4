"""Pinned: a driver's lease, and what is done about a driver that is gone, on a cluster that outlives its drivers.

1.  A lease names what its driver has, is renewed while it is open, and goes last; a closed driver leaves nothing.
2.  The calls of a driver killed with -9 are ended when its lease has lapsed, by their own executors.
3.  What it left is found and removed by the next driver on the same host, without delaying its start.
4.  A lease that is renewed is never touched; nor is anything that no lease names, nor what a living driver's lease
    names, too: neither by cleaning nor by another driver's close.
5.  A lease whose process cannot be looked at has lapsed when its count stands still for its own `lease_s`.
6.  Ctrl-C in the middle of a gather leaves nothing, and ends within seconds.
7.  Any run id makes a lease; what it owns changes without a wait for the cache, and one that stays away is told once.
8.  A session of a dead driver whose executor has died as well is left, named with the remedy; the rest is removed.
9.  Closing a session that had no call leaves nothing that looks at it.
10. A cluster that is frozen, cache and all: every wait still ends, close within a minute, and names what it left.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from seeker.cluster import leftovers
from seeker.cluster.client import Cluster, gather, open_cluster
from seeker.cluster.lease import Lease
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import Buffer, FlightObjects, ObjectHandle
from seeker.errors import ClusterError, DeadlineError, GangLostError
from tests.cluster.conftest import is_running, object_keys, wait_until
from tests.cluster.served import served_cluster, settings_of, start_driver

DRIVER = """
import json, time
from seeker.cluster.client import ClusterSettings, gather, open_cluster
with open_cluster(ClusterSettings(run_id="lost", lease_s=%s)) as cluster:
    service = cluster.start("x", "tests.cluster.services:Echo", {}, executors=2, resources="mem=64m")
    about = service.call("about", deadline_s=60).result()
    calls = [service.call("sleep", 600, deadline_s=600) for _ in range(3)]
    cluster.objects.put("lost/objects", b"data")
    time.sleep(0.5)
    print(json.dumps({"prefix": service.prefix, **about}), flush=True)
    for call in gather(calls, 600):
        call.result()
"""


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    with served_cluster() as description:
        yield description


def _sessions(cluster: Cluster) -> set[str]:
    return {each["session"] for each in cluster.executors() if each["session"]}


def test_a_lease_names_what_there_is_and_goes_last(served: dict[str, Any]) -> None:
    objects = FlightObjects(served["cache_endpoint"])
    with open_cluster(settings_of(served, run_id="named", lease_s=1.2)) as cluster:
        service = cluster.start("x", "tests.cluster.services:Echo", {}, resources="mem=64m")
        cluster.objects.put("own/objects", b"data")
        service.call("echo", 1, deadline_s=60).result()
        (first,) = leftovers.read_leases(objects)
        assert (first.run_id, first.lease_s) == ("named", 1.2)
        assert not first.is_known_dead()
        wait_until(lambda: leftovers.read_leases(objects)[0].count > first.count + 2, 5, "the lease is renewed")
        (later,) = leftovers.read_leases(objects)
        assert later.sessions == (service.prefix.partition("/")[2],)
        assert set(later.prefixes) >= {"own/objects", service.prefix}
        assert f"seeker-code/{later.code[0]}/archive" in object_keys(served["cache_endpoint"])
        service.close()
        wait_until(lambda: not leftovers.read_leases(objects)[0].sessions, 5, "a closed session is named no more")
        assert service.prefix not in leftovers.read_leases(objects)[0].prefixes
    assert object_keys(served["cache_endpoint"]) == []
    objects.close()


@pytest.mark.drill
def test_a_killed_driver(served: dict[str, Any], tmp_path: Path) -> None:
    bystander = FlightObjects(served["cache_endpoint"])
    bystander.put("others/objects", b"data", "kept")
    alive = Lease(FlightObjects(served["cache_endpoint"]), "alive", 30.0, lambda: ())
    alive.own(prefixes="alive/objects")
    bystander.put("alive/objects", b"data", "kept")
    driver, told = start_driver(DRIVER % 2.0, served, tmp_path)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert is_running(told["pid"])
    wait_until(lambda: not is_running(told["pid"]), 40, "the service process ends with the lease")
    assert is_running(told["parent"])
    start = time.monotonic()
    with open_cluster(settings_of(served, run_id="next")) as cluster:
        assert time.monotonic() - start < 2
        assert cluster.start("y", "tests.cluster.services:Echo", {}).call("echo", 1, deadline_s=60).result() == 1
        keys = lambda: object_keys(served["cache_endpoint"])  # noqa: E731
        wait_until(lambda: not any(key.startswith((told["prefix"], "lost/")) for key in keys()), 60, "its objects go")
        wait_until(lambda: not is_running(told["parent"]), 30, "its executors go")
        lost = [each for each in leftovers.read_leases(bystander) if each.run_id == "lost"]
        assert lost == []
    assert keys() == ["alive/objects/kept", "others/objects/kept", alive.key]
    alive.close()
    bystander.delete("others/objects")
    bystander.delete("alive/objects")
    bystander.close()


def test_a_lease_that_stands_still(served: dict[str, Any]) -> None:
    objects = FlightObjects(served["cache_endpoint"])
    lease = Lease(FlightObjects(served["cache_endpoint"]), "elsewhere", 1.5, lambda: ())
    lease.own(prefixes="elsewhere/objects")
    lease.leave(renew=False)
    told = pickle.loads(objects.get(ObjectHandle(lease.key, 0, objects.endpoint)))
    objects.put(lease.prefix, pickle.dumps({**told, "host": "another"}), "lease")
    objects.put("elsewhere/objects", b"data")
    start = time.monotonic()
    (found,) = leftovers.find_leftovers(objects)
    assert found.key == lease.key
    assert 1.5 < time.monotonic() - start < 8
    stop = threading.Event()
    stop.set()
    assert list(leftovers.find_leftovers(objects, stop)) == []
    with open_cluster(settings_of(served)) as cluster:
        assert leftovers.clean(cluster._frontend, objects, found) == []
    assert object_keys(served["cache_endpoint"]) == []
    objects.close()


@pytest.mark.drill
def test_interrupted_while_it_gathers(served: dict[str, Any], tmp_path: Path) -> None:
    driver, told = start_driver(DRIVER % 30.0, served, tmp_path)
    start = time.monotonic()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=20) != 0
    assert time.monotonic() - start < 12
    assert object_keys(served["cache_endpoint"]) == []
    wait_until(lambda: not any(map(is_running, (told["pid"], told["parent"]))), 10, "its executors go")


@pytest.mark.drill
def test_a_driver_and_its_executor_both_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served_cluster("--faults", "engine") as served:
        driver, told = start_driver(DRIVER % 30.0, served, tmp_path)
        driver.kill()
        driver.wait()
        os.kill(told["parent"], signal.SIGKILL)
        named = ["--endpoint", served["endpoint"], "--cache-endpoint", served["cache_endpoint"]]
        assert main(["cluster", "clean", *named]) == 1
        output = capsys.readouterr().out
        assert f"left: session {told['prefix'].partition('/')[2]}" in output
        assert "an executor is dead and still there" in output
        assert "restart the cluster's session manager soon" in output
        assert output.count(told["prefix"].partition("/")[2]) == 1
        with open_cluster(settings_of(served, run_id="next")) as cluster:
            assert cluster.start("y", "tests.cluster.services:Echo", {}).call("echo", 1, deadline_s=60).result() == 1


def test_closing_what_was_never_called(served: dict[str, Any]) -> None:
    looks = lambda: sum("SessionWatch._look" in repr(task) for task in list(shared_loop()._tasks))  # noqa: E731
    before = looks()
    with open_cluster(settings_of(served)) as cluster, cluster.start("x", "tests.cluster.services:Echo", {}) as service:
        session = service.prefix.partition("/")[2]
        bound = lambda: any(each["session"] == session and each["state"] == 4 for each in cluster.executors())  # noqa: E731
        wait_until(bound, 30, "an executor to be asked whether it lives")
    assert looks() <= before


def test_what_a_living_driver_names_too_stays(served: dict[str, Any]) -> None:
    objects = FlightObjects(served["cache_endpoint"])
    used = ("shared/run", "seeker-code/77aa")
    alive = Lease(FlightObjects(served["cache_endpoint"]), "run", 30.0, lambda: ())
    alive.own(prefixes=used[0], code="77aa")
    gone = Lease(FlightObjects(served["cache_endpoint"]), "run", 1.0, lambda: (*used, "gone/run"))
    gone.own(code="77aa")
    gone.leave(renew=False)
    keys = [objects.put(prefix, b"data", "x").key for prefix in (*used, "gone/run")]
    record = next(each for each in leftovers.read_leases(objects) if each.key == gone.key)
    with open_cluster(settings_of(served, run_id="run")) as cluster:
        cluster.objects.put(used[0], b"data", "y")
        assert leftovers.clean(cluster._frontend, objects, record) == []
    left = object_keys(served["cache_endpoint"])
    assert set(left) == {*keys[:2], f"{used[0]}/y", alive.key}
    alive.close()
    for prefix in used:
        objects.delete(prefix)
    objects.close()


def test_a_run_id_with_odd_characters(served: dict[str, Any]) -> None:
    objects = FlightObjects(served["cache_endpoint"])
    lease = Lease(FlightObjects(served["cache_endpoint"]), "2024:01/x *..", 30.0, lambda: ())
    assert re.fullmatch(r"seeker-leases/2024-01-x-[0-9a-f]{8}/lease", lease.key)
    assert "2024:01/x *.." in {each.run_id for each in leftovers.read_leases(objects)}
    lease.close()
    objects.close()


def test_a_lease_whose_cache_is_silent() -> None:
    silent = _SilentObjects()
    lease = Lease(silent, "run", 0.06, lambda: ())
    silent.answers.clear()
    assert silent.asked.wait(10)
    start = time.monotonic()
    lease.note(sessions="a")
    lease.disown(sessions="a")
    assert time.monotonic() - start < 1
    silent.answers.set()
    lease.leave(renew=False)


def test_a_cache_that_stays_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    objects = _AwayObjects()
    lease = Lease(objects, "run", 0.06, lambda: ())
    told = lambda: [record.levelname for record in caplog.records if "cannot be renewed" in record.getMessage()]  # noqa: E731
    for number in (1, 2):
        objects.num_refused, objects.is_away = 0, True
        wait_until(lambda: objects.num_refused > 3, 5, "it is tried again and again")
        objects.num_answered, objects.is_away = 0, False
        wait_until(lambda: objects.num_answered > 0, 5, "the cache is back")
        assert told().count("WARNING") == number
    lease.leave(renew=False)


class _AwayObjects(FlightObjects):
    """Keeps nothing; refuses while it `is_away`."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:9")
        self.is_away = False
        self.num_refused = self.num_answered = 0

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        if self.is_away:
            self.num_refused += 1
            raise ClusterError("away")
        self.num_answered += 1
        return ObjectHandle(f"{prefix}/{name}", 1, self.endpoint)


class _SilentObjects(FlightObjects):
    """Keeps nothing; answers only while `answers` is set."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:9")
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()

    def put(self, prefix: str, data: Any, name: str | None = None) -> ObjectHandle:
        if not self.answers.is_set():
            self.asked.set()
            assert self.answers.wait(20)
        return ObjectHandle(f"{prefix}/{name}", 1, self.endpoint)


@pytest.mark.drill
@pytest.mark.skipif(
    int(os.environ.get("SEEKER_DRILL_ROUNDS", "20")) <= 20, reason="a minute: part of `make drill` (above 20)"
)
def test_a_frozen_cluster() -> None:
    with served_cluster() as served:
        cluster = open_cluster(settings_of(served, run_id="frozen"))
        plain = cluster.start("plain", "tests.cluster.services:Echo", {}, resources="mem=64m")
        pair = cluster.start("pair", "tests.cluster.gang_services:Member", {}, "mem=64m", executors=2, gang=True)
        gang = pair.form(deadline_s=60)
        other = cluster.start("other", "tests.cluster.gang_services:Member", {}, "mem=64m", executors=2, gang=True)
        idle = other.form(deadline_s=60)
        calls = [plain.call("sleep", 60, deadline_s=3), *gang.call_all("pause", 60, deadline_s=3)]
        time.sleep(0.3)
        start = time.monotonic()
        os.kill(served["pid"], signal.SIGSTOP)
        try:
            late = plain.call("echo", 1, deadline_s=2)
            errors = [call.error() for call in gather([*calls, late], 20)]
            assert all(isinstance(error, DeadlineError | GangLostError) for error in errors)
            with pytest.raises(DeadlineError, match="gang pair did not form"):
                pair.form(deadline_s=2)
            asked = time.monotonic()
            with pytest.raises(DeadlineError, match=r"other.pause.*: its barrier cannot be made"):
                idle.run("pause", 1, deadline_s=2)
            assert time.monotonic() - asked < 12
            assert idle.ended is not None
            assert time.monotonic() - start < 37
            cluster.close()
            assert time.monotonic() - start < 97
            assert len(cluster.abandoned) == 3
        finally:
            os.kill(served["pid"], signal.SIGCONT)
