"""Pinned behaviour of gangs, with real processes.

1.  A formed gang has ranks 0 to N-1 on N executors; `run` reaches every member once, values in rank order, warm.
2.  A member that dies, its executor that dies, and one that hangs past the deadline end the generation with one
    `GangLostError` for all calls, which names rank and executor, long before the others' own ends; the next forming
    makes a new generation on which calls work. So does one that died while nobody called.
3.  An error that all ranks raise leaves the gang; one that some raise ends it and is raised.
4.  Forming has a deadline, says how many came, and leaves nothing half formed. A member that dies while it forms does
    not keep the others: it is formed again at once. One that waits for another forming ends by its own deadline, and
    leaves that one's gang alone.
5.  Two gangs of two where three executors fit: one runs, then the other; never a partial hold.
6.  Calls of an ended generation, `call` on a gang and `form` on a plain service are refused; cancelling one call ends
    the generation.
7.  Forming again ends the generation before, also when two threads form at once: the executors are in one of them.
8.  Calls leave no barrier behind, an ended generation no object of its own.
9.  Ctrl-C while a gang forms, and the end of its cluster after it, say nothing of objects that need not be written.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from seeker.cluster.client import Cluster, ClusterSettings, Gang, Service, gather, open_cluster
from seeker.cluster.loop import shared_loop
from seeker.errors import CallError, ConfigError, DeadlineError, GangLostError
from tests.cluster.conftest import descendants, object_keys, wait_until

MEMBER = "tests.cluster.gang_services:Member"
SMALL = "mem=64m"


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Service]:
    with cluster.start("pair", MEMBER, {}, resources=SMALL, executors=2, gang=True) as service:
        yield service


@pytest.fixture
def gang(pair: Service) -> Iterator[Gang]:
    formed = pair.form(deadline_s=60)
    yield formed
    formed.end("the test is over")


def test_every_member_once_in_rank_order(gang: Gang) -> None:
    assert gang.world == len(set(gang.executors)) == len(gang.hosts) == 2
    assert list(gang.executors) == sorted(gang.executors)
    told = [gang.run("about", deadline_s=30) for _ in range(3)]
    for turn, members in enumerate(told):
        assert [each["rank"] for each in members] == [0, 1]
        assert [each["executor"] for each in members] == list(gang.executors)
        assert {each["num_calls"] for each in members} == {turn + 1}
        assert {each["generation"] for each in members} == {gang.generation}
    calls = gang.call_all("about", deadline_s=30)
    assert sorted(call.result()["rank"] for call in calls) == [0, 1]
    assert sorted(call.rank for call in calls) == [0, 1]


@pytest.mark.parametrize("of", ["service", "executor"])
def test_a_member_that_dies(pair: Service, gang: Gang, of: str) -> None:
    start = time.monotonic()
    calls = gang.call_all("die", 1, of, deadline_s=50)
    for call in gather(calls, 60):
        with pytest.raises(GangLostError, match=rf"rank 1 \(executor {gang.executors[1]}") as caught:
            call.result()
        assert caught.value.rank == 1
        assert caught.value.executor == gang.executors[1]
    assert time.monotonic() - start < 8
    with pytest.raises(GangLostError, match="rank 1"):
        gang.run("about", deadline_s=30)
    again = pair.form(deadline_s=60)
    assert again.generation != gang.generation
    assert [each["num_calls"] for each in again.run("about", deadline_s=30)] == [1, 1]
    assert time.monotonic() - start < 25
    again.end("the test is over")


@pytest.mark.drill
@pytest.mark.parametrize("process", ["pid", "parent"])
def test_a_member_that_dies_between_two_calls(gang: Gang, process: str) -> None:
    os.kill(gang.run("about", deadline_s=30)[1][process], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(GangLostError, match=rf"rank 1 \(executor {gang.executors[1]}"):
        gang.run("about", deadline_s=50)
    assert time.monotonic() - start < 15


def test_a_member_that_hangs(gang: Gang) -> None:
    with pytest.raises(GangLostError, match=r"rank 0 .*did not finish within its deadline") as caught:
        gang.run("hang", 0, deadline_s=2)
    assert caught.value.rank == 0
    assert gang.ended is caught.value


def test_formed_twice_at_once(pair: Service, gang: Gang) -> None:
    with ThreadPoolExecutor(2) as threads:
        formed = [each.result() for each in [threads.submit(pair.form, 60) for _ in range(2)]]
    with pytest.raises(GangLostError, match="was ended: it is formed again"):
        gang.run("about", deadline_s=30)
    alive = [each for each in formed if each.ended is None]
    assert len(alive) == 1
    assert [each["generation"] for each in alive[0].run("about", deadline_s=30)] == [alive[0].generation] * 2


def test_errors_of_all_ranks_and_of_some(gang: Gang) -> None:
    with pytest.raises(CallError, match="rank 0 does not like it"):
        gang.run("fail", [0, 1], deadline_s=30)
    assert gang.ended is None
    assert len(gang.run("about", deadline_s=30)) == 2
    start = time.monotonic()
    with pytest.raises(CallError, match="rank 1 does not like it"):
        gang.run("fail", [1], deadline_s=50)
    assert time.monotonic() - start < 8
    assert isinstance(gang.ended, GangLostError)


def test_cancelling_one_call_ends_the_generation(gang: Gang) -> None:
    calls = gang.call_all("hang", 1, deadline_s=50)
    calls[0].cancel()
    for call in gather(calls, 5):
        assert call.done()
    assert any(isinstance(call.error(), GangLostError) for call in calls)
    with pytest.raises(GangLostError, match="cancelled"):
        gang.call_all("about", deadline_s=5)


def test_what_is_refused(cluster: Cluster, pair: Service) -> None:
    with pytest.raises(ConfigError, match=r"is a gang: form\(\) it"):
        pair.call("about", deadline_s=1)
    with cluster.start("plain", MEMBER, {}, resources=SMALL) as plain, pytest.raises(ConfigError, match="is no gang"):
        plain.form(deadline_s=1)
    for wrong, text in (
        ({"gang": True, "elastic": True, "max_executors": 2}, "fixed size"),
        ({"elastic": True}, "needs max_executors"),
        ({"max_executors": 3}, "only elastic=True"),
        ({"elastic": True, "executors": 3, "max_executors": 2}, "expected executors"),
    ):
        with pytest.raises(ConfigError, match=text):
            cluster.start("wrong", MEMBER, {}, **wrong)


def test_forming_ends_at_its_deadline(cluster: Cluster) -> None:
    with cluster.start("slow", MEMBER, {"set_up_s": 60}, resources=SMALL, executors=2, gang=True) as service:
        with pytest.raises(DeadlineError, match=r"0 of 2 members came within 1.5 s"):
            service.form(deadline_s=1.5)
        keys = lambda: object_keys(cluster.describe()["cache_endpoint"], service.prefix)  # noqa: E731
        wait_until(lambda: not any("/gang-" in key for key in keys()), 5, "the half formed gang goes")


@pytest.mark.drill
def test_waiting_for_another_forming_has_a_deadline(cluster: Cluster) -> None:
    with (
        cluster.start("busy", MEMBER, {"set_up_s": 3.0}, resources=SMALL, executors=2, gang=True) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(service.form, 60.0)
        time.sleep(0.3)
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0.5 s: it is being formed by another caller"):
            service.form(deadline_s=0.5)
        assert time.monotonic() - start < 2.5
        assert len(first.result().run("about", deadline_s=30)) == 2
        for wrong in (math.inf, math.nan):
            with pytest.raises(ConfigError, match="expected a number of seconds"):
                service.form(deadline_s=wrong)


def test_a_member_dies_while_it_forms(cluster: Cluster) -> None:
    with cluster.start("dying", MEMBER, {"set_up_s": 1.0}, resources=SMALL, executors=2, gang=True) as service:
        start = time.monotonic()
        killer = threading.Thread(target=_kill_one_that_sets_up, args=(service.name,), daemon=True)
        killer.start()
        formed = service.form(deadline_s=60)
        assert not killer.is_alive()
        assert time.monotonic() - start < 30
        assert len(formed.run("about", deadline_s=30)) == 2


def _kill_one_that_sets_up(name: str) -> None:
    found: list[int] = []
    while not found:
        found = [pid for pid in descendants(os.getpid()) if f"/{name}-" in _log_of(pid)]
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)


def _log_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def test_objects_of_calls_are_deleted(cluster: Cluster, pair: Service) -> None:
    formed = pair.form(deadline_s=60)
    for _ in range(5):
        formed.run("about", deadline_s=30)
    formed.end("the test is over")
    own = [f"{pair.prefix}/{name}" for name in ("cancel", "context", "parked")]
    endpoint = cluster.describe()["cache_endpoint"]
    keys: list[str] = []

    def is_clean() -> bool:
        keys[:] = object_keys(endpoint, pair.prefix)
        return keys == own

    wait_until(is_clean, 5, f"barriers and gang objects are deleted: {keys}")


@pytest.mark.drill
def test_two_gangs_where_one_fits() -> None:
    """Each runs for a while and is released by its close; holds are all or nothing at every look."""
    with open_cluster(ClusterSettings(slots=3)) as cluster:
        services = [cluster.start(f"gang-{name}", MEMBER, {}, resources=SMALL, executors=2, gang=True) for name in "ab"]
        done: list[str] = []
        threads = [threading.Thread(target=_work, args=(service, done), daemon=True) for service in services]
        for thread in threads:
            thread.start()
        largest: dict[str, int] = {}
        while any(thread.is_alive() for thread in threads):
            sessions = Counter(each["session"] for each in cluster.executors() if each["session"])
            for session, number in sessions.items():  # fewer than both only while they are released
                assert number == 2 or largest.get(session) == 2, f"{session} holds {number} of 2"
                largest[session] = max(number, largest.get(session, 0))
            time.sleep(0.01)
        assert sorted(done) == ["gang-a", "gang-b"]
        assert set(largest.values()) == {2}


def _work(service: Service, done: list[str]) -> None:
    formed = service.form(deadline_s=60)
    formed.run("about", deadline_s=30)
    done.append(service.name)
    service.close()


def test_a_member_that_does_not_come(gang: Gang) -> None:
    """Rank 0 waits at the second call's barrier, where rank 1 never comes."""
    first = gang.call_all("hang", 1, deadline_s=50)
    with pytest.raises(GangLostError, match=r"rank 1 \(executor") as caught:
        gang.run("about", deadline_s=2)
    assert caught.value.executor == gang.executors[1]
    errors = [call.error() for call in gather(first, 5)]
    assert sum(isinstance(error, GangLostError) for error in errors) >= 1


@pytest.mark.drill
def test_an_interrupted_forming_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    with open_cluster(ClusterSettings()) as own:
        service = own.start("stopped", MEMBER, {"set_up_s": 60}, resources=SMALL, executors=2, gang=True)
        with pytest.raises(TimeoutError):  # as by Ctrl-C: the wait ends, and cancels what it waits for
            shared_loop().wait(service._form(60.0), 0.1)
    time.sleep(1.0)  # for a write to fail
    told = [record.getMessage() for record in caplog.records if record.name == "seeker.cluster"]
    assert [each for each in told if "cannot write the cancel object" in each] == []
