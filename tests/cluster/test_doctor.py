"""What the doctor finds, over listed states; and that it finds nothing on a sound cluster.

1.  An executor that stays in Binding or Unbinding over two looks is stuck; one that moved on is not.
2.  A session with pending calls and no executor is named with the reason: given up, unmeetable, starting, a stuck
    executor anywhere, a batch that is not full, no room, or none that can be seen.
3.  Nodes: none, not ready, silent, ahead of our clock. Clocks and versions that differ.
4.  Running calls without an executor: a session that cannot be closed.
5.  A cache without disk storage is noted for real clusters; the probe writes, reads back and deletes.
6.  Drivers that are gone: their lease is not renewed, or their process is dead; sessions that they abandoned.
7.  Exit code 1 when anything is wrong, also when the cluster does not answer, which has a remedy as well.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli import main
from seeker.cluster import probes
from seeker.cluster.client import Cluster
from seeker.cluster.doctor import clock_finding, examine, examine_leases, version_finding
from seeker.cluster.leftovers import LeaseRecord
from seeker.cluster.listing import ExecutorState, Listing, NodeState, ObjectCount, SessionState
from seeker.cluster.objects import Buffer, ObjectHandle
from seeker.cluster.resources import Resources
from seeker.cluster.status import print_status
from seeker.cluster.waiting import why_waiting
from tests.cluster.conftest import object_keys
from tests.cluster.raw import BINDING, UNBINDING, RawCluster, raw_cluster
from tests.fakes import MemoryObjects

NOW = 1_700_000_000.0
ONE = Resources(1, 2**30, 0)
NODE = NodeState("n1", True, Resources(4, 8 * 2**30, 0), Resources(2, 4 * 2**30, 0), NOW)
SESSION = SessionState("s", "app", True, ONE, 0, 4, 1, 2, 0, 0, 0)
SOUND = Listing("http://a:1", "grpc://a:2", (NODE,), ("app",), (), (), (), is_local=True)
FAILED = ((1001, "no module x"),)


def executor(state: str, session: str = "s") -> ExecutorState:
    return ExecutorState("e1", "n1", session, state, ONE)


def listing(*executors: ExecutorState, session: SessionState = SESSION, node: NodeState = NODE) -> Listing:
    return replace(SOUND, sessions=(session,), executors=executors, nodes=(node,))


def told(before: Listing, after: Listing | None = None) -> list[str]:
    return [finding.what for finding in examine(before, after or before, NOW) if finding.kind == "wrong"]


def test_a_sound_cluster() -> None:
    assert told(SOUND) == []
    assert told(listing(executor("Bound"))) == []


@pytest.mark.parametrize("state", ["Binding", "Unbinding"])
def test_stuck_executors(state: str) -> None:
    idle = replace(SESSION, pending=0)
    stuck = listing(executor(state), session=idle)
    assert told(stuck)[0].startswith(f"executor e1 on n1 stays in {state} for session s")
    assert all(finding.remedy for finding in examine(stuck, stuck, NOW))
    assert told(stuck, listing(executor("Bound"), session=idle)) == []
    assert told(SOUND, stuck) == []


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (listing(session=replace(SESSION, events=(*FAILED, (1002, "")))), "given up after bind failures: no module x"),
        (
            listing(session=replace(SESSION, wanted=Resources(1, 2**30, 1))),
            "no node can meet cpu=1,mem=1g,gpu=1: n1 has cpu=4,mem=8g,gpu=0",
        ),
        (
            listing(executor("Binding"), session=replace(SESSION, events=FAILED)),
            "an executor of it is starting; the last one failed: no module x",
        ),
        (
            listing(executor("Unbinding", "other")),
            "executor e1 is in Unbinding: while it is, the engine makes no other",
        ),
        (
            listing(session=replace(SESSION, batch=4)),
            "its executors are made 4 at a time, one for each call: 2 are pending",
        ),
        (
            listing(executor("Bound", "other"), node=replace(NODE, free=Resources(0, 2**30, 0))),
            "no room: it asks for cpu=1,mem=1g,gpu=0, free are n1 cpu=0,mem=1g,gpu=0 (held by other)",
        ),
        (listing(session=replace(SESSION, events=FAILED)), "the last executor failed: no module x"),
        (listing(), "no reason can be seen"),
    ],
)
def test_why_a_session_waits(state: Listing, reason: str) -> None:
    assert why_waiting(state.sessions[0], state) == reason
    assert any(reason.split(":")[0] in text or "which no node can meet" in text for text in told(state))


def test_sessions_that_do_not_wait() -> None:
    assert why_waiting(SESSION, listing(executor("Bound"))) is None
    assert why_waiting(replace(SESSION, pending=0), SOUND) is None
    assert why_waiting(replace(SESSION, is_open=False), SOUND) is None
    assert told(listing(executor("Bound")), listing()) == []  # it did not wait at the first look


def test_running_calls_without_an_executor() -> None:
    lost = listing(session=replace(SESSION, pending=0, running=1))
    assert told(lost) == ["session s has 1 running calls and no executor that runs them"]


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (replace(NODE, is_ready=False), "node n1 is not ready"),
        (replace(NODE, heartbeat_s=NOW - 90), "node n1 was heard last 90 s ago"),
        (replace(NODE, heartbeat_s=NOW + 90), "the clock of node n1 is 90 s ahead"),
    ],
)
def test_nodes(node: NodeState, text: str) -> None:
    (found,) = told(replace(SOUND, nodes=(node,)))
    assert text in found
    assert told(replace(SOUND, nodes=())) == ["the cluster has no node"]


def test_status_shows_everything_and_why_a_session_waits() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    full = replace(NODE, free=Resources(0, 2**30, 0))
    shown = listing(executor("Bound", "other"), node=full)
    objects = (ObjectCount("app/s", 12, 3 * 2**20, 2**31), ObjectCount("app/t", 1))
    print_status(replace(shown, objects=objects), console)
    text = console.export_text()
    for part in (
        "n1",
        "0 of 4",
        "1.0 GiB of 8.0 GiB",
        "0 to 4 x cpu=1,mem=1g",
        "e1",
        "Bound",
        "3.0 MiB",
        "2.0 GiB",
        "?",
    ):
        assert part in text
    assert "session s waits: no room: it asks for cpu=1,mem=1g,gpu=0, free are n1" in text


def test_clocks_and_versions() -> None:
    assert clock_finding(1.9) == []
    assert clock_finding(-3.0)[0].what == "the session manager's clock is 3.0 s behind this machine's"
    assert version_finding("this environment", "0.6.0", "0.6.0") == []
    assert "install flamepy==0.6.0" in version_finding("this environment", "0.7.0", "0.6.0")[0].remedy


def test_leases() -> None:
    dead = LeaseRecord("k", 3, "demo", "box", 1, "1", 30.0, ("s1", "s2"), (), (), (), ("s2",))
    alive = replace(dead, key="l", abandoned=())
    assert examine_leases([alive], [alive], 29.0) == []
    assert examine_leases([alive], [replace(alive, count=4)], 31.0) == []
    (gone,) = examine_leases([alive], [alive], 31.0)
    assert gone.what == "run demo (process 1 on box) is gone and left s1, s2"
    assert "seeker cluster clean" in gone.remedy
    (note,) = examine_leases([], [dead], 1.0)
    assert (note.kind, note.what.partition(" by ")[0]) == ("note", "session s2 was abandoned")


def test_a_real_cache_is_not_trusted() -> None:
    (note,) = examine(replace(SOUND, is_local=False), SOUND, NOW) + examine(SOUND, replace(SOUND, is_local=False), NOW)
    assert note.kind == "note"
    assert "--probe-cache" in note.remedy


def test_on_a_cluster(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cache = cluster.describe()["cache_endpoint"]
    arguments = ["cluster", "doctor", "--endpoint", cluster.endpoint, "--cache-endpoint", cache]
    assert main([*arguments, "--wait", "0.2", "--probe", "--probe-cache", "3m"]) == 0, capsys.readouterr().out
    output = capsys.readouterr().out
    assert "the object cache kept all of 3145728 bytes" in output
    assert "answers" in output
    assert output.endswith("nothing is wrong\n")
    assert object_keys(cache, "seeker-doctor") == []
    assert not [name for name in _applications(cluster, capsys) if name.startswith("seeker-doctor")]


def _applications(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> list[str]:
    cache = cluster.describe()["cache_endpoint"]
    arguments = ["cluster", "status", "--json", "--endpoint", cluster.endpoint, "--cache-endpoint", cache]
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)["applications"]


def _examined(raw: RawCluster, capsys: pytest.CaptureFixture[str]) -> str:
    endpoint, cache = raw.description["endpoint"], raw.description["cache_endpoint"]
    arguments = ["--wait", "0.5", "--endpoint", endpoint, "--cache-endpoint", cache]
    assert main(["cluster", "doctor", *arguments]) == 1
    return capsys.readouterr().out


def test_a_bricked_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with raw_cluster("--faults", "engine", "--slots", "4") as raw:
        application = raw.register("raw")
        dead = raw.open(application, max_instances=1)
        raw.watch(dead, raw.submit(dead, "exit"))
        raw.close(dead)
        raw.await_states(dead, [UNBINDING])
        waiting = raw.open(application, max_instances=1)
        raw.submit(waiting, "pid")
        output = _examined(raw, capsys)
    assert f"stays in Unbinding for session {dead}" in output
    assert f"session {waiting} has 1 pending calls and no executor: executor " in output
    assert output.endswith("2 things are wrong\n")


def test_a_hanging_constructor_and_a_request_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    with raw_cluster("--faults", "engine", "--slots", "2") as raw:
        hanging = raw.open(raw.register("raw"), b"hang", max_instances=1)
        raw.submit(hanging, "pid")
        raw.await_states(hanging, [BINDING])
        oversize = raw.open("raw", cpu=64, max_instances=1)
        output = _examined(raw, capsys)
    assert f"stays in Binding for session {hanging}" in output
    assert f"session {oversize} asks for cpu=64" in output


def test_a_cache_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SHARD_BYTES", 2**20)

    class Forgetful(MemoryObjects):
        """Keeps the newest two objects."""

        def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
            handle = super().put(prefix, data, name)
            kept.append(handle)
            if len(kept) > 2:
                self.delete(kept.pop(0).key)
            return handle

    kept: list[ObjectHandle] = []
    num_bytes = 5 * 2**19
    (lossy,) = probes.probe_cache(Forgetful(), num_bytes)
    assert lossy.what == f"the object cache lost 1 of 3 objects ({num_bytes} bytes in all)"
    (sound,) = probes.probe_cache(MemoryObjects(), num_bytes)
    assert sound.kind == "note"


def test_a_dead_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("seeker.cluster.commands.CONNECT_DEADLINE_S", 0.5)
    assert main(["cluster", "doctor", "--endpoint", "http://127.0.0.1:9"]) == 1
    told = capsys.readouterr().out
    assert "wrong: no cluster answered at http://127.0.0.1:9 within 0.5 s; it is named by --endpoint" in told
    assert "\n  -> start one there, or name another\n" in told
