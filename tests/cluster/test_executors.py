"""Pinned behaviour of the embedded cluster's executors and of its memory, as raw protocol messages.

1.  A start is quick: half a second from a call to its answer, the process's own imports aside.
2.  A process that exits at once, and one that never opens its socket, are bind failures with the reason and log tail.
3.  A constructor that hangs holds up nobody else, and its process ends when its session is closed.
4.  A crash in a call fails it at once; the next call runs on a new executor. Crashes without a call are followed by
    pauses that grow.
5.  Requested GPUs are assigned, no device to two executors; without a request nothing is assigned.
6.  Sockets lie in a private directory (0700) on short paths, and are gone with their executor.
7.  Processes that a service put into sessions of their own end with its executor.
8.  Elastic: 1 -> 4 -> 1 executors under 14 calls and the quiet after them.
9.  An idle executor beyond its session's minimum makes room for a session with calls.
10. Logs of ended executors are kept up to a number, each up to a size.
11. Nothing that an executor started outlives a cluster killed with -9 by 5 seconds, sessions of their own included.
12. 32 gangs of random sizes in random order all finish with real processes, and never hold a part (drill).
13. Finished calls and closed sessions are forgotten, those that somebody was told of first; memory, open files and
    threads stay flat (drill).
"""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from seeker.cluster import wire
from seeker.cluster.local.devices import devices_of, found_devices
from seeker.cluster.local.history import History
from seeker.cluster.local.logs import LogKeeper, cut
from seeker.cluster.local.records import StateError
from seeker.cluster.local.state import KEPT_CLOSED_SESSIONS, State
from tests.cluster.conftest import is_running, wait_until
from tests.cluster.raw import BINDING, BOUND, RawCluster, raw_cluster


@pytest.fixture(scope="module")
def raw() -> Iterator[RawCluster]:
    with raw_cluster("--slots", "8", "--gpus", "2") as cluster:
        cluster.register("plain")
        cluster.register("brief", delay_release=1)
        yield cluster


def _pid_of(raw: RawCluster, session: str) -> int:
    return int(raw.call(session, "pid"))


def test_start(raw: RawCluster) -> None:
    times: list[float] = []
    for _ in range(5):
        start = time.monotonic()
        session = raw.open("plain", max_instances=1)
        raw.call(session, "pid")
        times.append(time.monotonic() - start)
        raw.close(session)
    assert min(times) < 5.0, times  # 0.12 s on a quiet machine, most of it the import of grpc


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("exit", "exited with code 3 before it opened its socket"), ("deaf", "did not open its socket within 1 s")],
)
def test_processes_that_never_serve(arguments: str, reason: str) -> None:
    deadline_s = {"exit": "30", "deaf": "1"}[arguments]
    with raw_cluster("--slots", "1", "--socket-deadline", deadline_s) as raw:
        session = raw.open(raw.register("never", arguments=(arguments,)), max_instances=1)
        raw.submit(session, "pid")
        wait_until(lambda: len(raw.session(session).status.events) > 0, 20, "the first failure")
        assert f"return_code <11>: the process {reason}" in raw.session(session).status.events[0].message
        raw.close(session)
        raw.await_states(session, [])


def test_hanging_constructors_hold_up_nobody(raw: RawCluster) -> None:
    hanging = raw.open("plain", data=b"hang", min_instances=4, max_instances=4)
    raw.await_states(hanging, [BINDING] * 4)
    other = raw.open("plain", max_instances=1)
    start = time.monotonic()
    raw.call(other, "pid")
    assert time.monotonic() - start < 20
    raw.close(other)
    raw.close(hanging)
    raw.await_states(hanging, [], 5)


def test_crash_in_a_call(raw: RawCluster) -> None:
    session = raw.open("plain", max_instances=1)
    pid = _pid_of(raw, session)
    start = time.monotonic()
    task = raw.watch(session, raw.submit(session, "exit"))
    assert time.monotonic() - start < 3
    assert task.status.state == wire.TASK_FAILED
    assert "the process exited with code 7" in task.status.events[-1].message
    assert _pid_of(raw, session) != pid
    raw.close(session)


def test_processes_that_end_before_their_first_call_are_restarted_with_pauses(raw: RawCluster) -> None:
    session = raw.open(raw.register("short", arguments=("short",)), min_instances=1, max_instances=1)
    seen: set[str] = set()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        seen |= {each.metadata.id for each in raw.executors(session)}
        time.sleep(0.02)
    assert 2 <= len(seen) <= 5
    raw.close(session)


def test_gpus(raw: RawCluster) -> None:
    sessions = [raw.open("plain", gpu=1, min_instances=1, max_instances=1) for _ in range(2)]
    assigned = {raw.call(session, "environ CUDA_VISIBLE_DEVICES") for session in sessions}
    assert assigned == set(devices_of(2, found_devices()))
    third = raw.open("plain", gpu=1, max_instances=1)
    raw.submit(third, "pid")
    plain = raw.open("plain", max_instances=1)
    assert raw.call(plain, "environ CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES", "")
    assert raw.executors(third) == []
    for session in (*sessions, plain, third):
        raw.close(session)


def test_sockets_are_private(raw: RawCluster) -> None:
    session = raw.open("plain", max_instances=1)
    path = Path(raw.call(session, "environ FLAME_INSTANCE_ENDPOINT"))
    assert path.exists()
    assert len(str(path)) < 104
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    raw.close(session)
    wait_until(lambda: not path.exists(), 5, "the socket is removed")


def test_strays_end_with_their_executor(raw: RawCluster) -> None:
    session = raw.open("plain", max_instances=1)
    stray = int(raw.call(session, "stray"))
    assert os.getsid(stray) == stray
    raw.close(session)
    wait_until(lambda: not is_running(stray), 5, "the stray ends")
    session = raw.open("plain", max_instances=1)
    stray = int(raw.call(session, "stray"))
    raw.watch(session, raw.submit(session, "exit"))
    wait_until(lambda: not is_running(stray), 5, "the stray of a crashed process ends")
    raw.close(session)


def test_nothing_outlives_a_killed_cluster() -> None:
    with raw_cluster("--slots", "2") as raw:
        session = raw.open(raw.register("plain"), max_instances=1)
        pids = [_pid_of(raw, session), int(raw.call(session, "stray"))]
        root = raw.description["root"]
        os.kill(raw.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, pids)), 5, "every process ends")
        wait_until(lambda: not os.path.exists(root), 5, "the private directory is gone")


@pytest.mark.drill
def test_elastic(raw: RawCluster) -> None:
    session = raw.open("brief", min_instances=1, max_instances=4)
    raw.await_states(session, [BOUND])
    tasks = [raw.submit(session, "sleep 0.6") for _ in range(14)]
    wait_until(lambda: len(raw.executors(session)) == 4, 10, "four executors")
    for task in tasks:
        assert raw.watch(session, task).status.state == wire.TASK_SUCCEED
    assert len(raw.executors(session)) <= 4
    wait_until(lambda: raw.states(session) == [BOUND], 10, "one again")
    raw.close(session)


def test_room_is_made(raw: RawCluster) -> None:
    idle = raw.open("plain", min_instances=1, max_instances=6)
    for task in [raw.submit(idle, "sleep 0.5") for _ in range(6)]:
        raw.watch(idle, task)
    assert len(raw.executors(idle)) >= 4
    large = raw.open("plain", cpu=6, max_instances=1)
    raw.call(large, "pid", 20)
    wait_until(lambda: len(raw.executors(idle)) <= 2, 5, "room was made")
    raw.close(large)
    raw.close(idle)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert found_devices() == ("2", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert found_devices() == ()
    assert devices_of(4, ("2", "5")) == ("2", "5", "2", "5")
    assert devices_of(2, ()) == ("0", "1")
    assert devices_of(1, ("2", "5")) == ("2",)


def test_logs(tmp_path: Path) -> None:
    keeper = LogKeeper(tmp_path, max_ended=2, max_bytes=100)
    for name in "abc":
        path = keeper.begin(name)
        path.write_bytes(b"x" * 80)
        keeper.end(path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["executor-b.log", "executor-c.log"]
    path = keeper.begin("d")
    with path.open("ab") as writer:
        writer.write(b"a" * 90 + b"b" * 90)
        writer.flush()
        cut(path, 100, kept_bytes=50)
        writer.write(b"after")
    assert path.read_bytes() == b"[the beginning was cut]\n" + b"b" * 50 + b"after"


def test_history() -> None:
    history = History(kept_read=2, kept_unread=3)
    for task in (1, 2, 3):
        assert history.finished(task, 1) == []
    assert history.finished(4, 1) == [1]  # nobody asked for it, and there are too many
    for task in (4, 2, 3):
        history.read(task)
    assert history.finished(5, 1) == [4]
    heavy = History(kept_bytes=1000)
    for task in range(200):
        heavy.finished(task, 100)
        heavy.read(task)
    assert heavy.finished(200, 1) != []


def test_closed_sessions_are_forgotten() -> None:
    state = State()
    state.register("app", wire.types.ApplicationSpec(shim=0))
    for number in range(KEPT_CLOSED_SESSIONS + 10):
        state.create_session(f"s{number}", wire.types.SessionSpec(application="app"))
        state.close_session(f"s{number}")
    assert len(state.sessions) == KEPT_CLOSED_SESSIONS
    with pytest.raises(StateError, match="not found"):
        state.session("s0")
    large = state.create_session("large", wire.types.SessionSpec(application="app"))
    for _ in range(2):
        large.move(large.submit(b""), wire.TASK_SUCCEED, output=bytes(33 * 2**20))
    state.close_session("large")
    assert list(state.sessions) == ["large"]
    state.create_session("s0", wire.types.SessionSpec(application="app"))
    state.close_session("s0")
    state.delete_session("s0")
    assert "s0" not in state.sessions
    state.unregister("app")
    assert state.sessions == {}


# -- drills --------------------------------------------------------------------------------------------------------


def _usage(pid: int) -> tuple[float, int, int]:
    """Resident MiB, open files, threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


@pytest.mark.skipif(
    int(os.environ.get("SEEKER_DRILL_ROUNDS", "20")) <= 20, reason="half a minute: part of `make drill` (above 20)"
)
@pytest.mark.drill
@pytest.mark.timeout(900)
def test_memory_is_flat() -> None:
    with raw_cluster("--slots", "4") as raw:
        raw.register("plain")
        session = raw.open("plain", max_instances=2)
        usage: list[tuple[float, int, int]] = []
        for number in range(10_000):
            if number in (1000, 9999):
                usage.append(_usage(raw.pid))
            raw.call(session, "x" * 200)
        for number in range(400):
            brief = raw.open("plain", max_instances=1)
            if number % 8 == 0:
                raw.call(brief, "pid")
            raw.close(brief)
        raw.await_states(brief, [])
        usage.append(_usage(raw.pid))
    print("MiB, files, threads after 1,000 and 10,000 calls and 400 sessions:", usage)
    assert usage[-1][0] < 1.1 * usage[0][0]
    assert usage[-1][1] <= usage[0][1] + 2
    assert usage[-1][2] <= usage[0][2] + 4


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_32_gangs_of_processes() -> None:
    with raw_cluster("--slots", "4") as raw:
        raw.register("plain")
        rng = random.Random(5)
        sizes = {}
        for _ in range(32):
            size = rng.randint(1, 4)
            gang = raw.open("plain", min_instances=size, max_instances=size, batch_size=size)
            sizes[gang] = [size, *(raw.submit(gang, "sleep 0.02") for _ in range(2 * size))]
        seen: set[tuple[int, int]] = set()
        while sizes:
            held = Counter(each.status.session_id for each in raw.executors() if each.status.state in (BINDING, BOUND))
            seen |= {(size, held[gang]) for gang, (size, *_) in sizes.items()}
            for gang in [gang for gang in sizes if raw.session(gang).status.succeed == 2 * sizes[gang][0]]:
                raw.close(gang)
                del sizes[gang]
        assert all(number in (0, size) for size, number in seen), seen
