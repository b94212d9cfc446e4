"""Pinned behaviour of the program that Flame starts on a node, spoken to as the engine does.

1.  It opens its socket within a second of Python's start, and entering a session always succeeds, whatever is in it.
2.  A starter that cannot be loaded is the reply to every call; one whose cache is away is tried until the call's
    deadline, so that a call finds it when the cache is back.
3.  Garbage as a task's input, or a task without a session, is a reply as well, and the program lives on.
4.  A reply is the task's output itself; no object is written for it.
5.  A service process that dies leaves nothing behind, not even daemons with an empty environment; leaving the session
    and SIGTERM end the service process with all that it started; so does SIGKILL for the process itself.
6.  Orphans that end by themselves are collected.
7.  Where a variable names a call socket, calls come over it, too, one connection after another. One that breaks off, or
    a program that cannot open the socket, changes nothing else; the service process knows nothing of the variable.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from seeker.cluster import wire
from seeker.cluster.frames import END, HEADER, REQUEST
from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.objects import FlightObjects
from seeker.cluster.session import ARGUMENTS, context_object, unpickle_reply
from seeker.cluster.starter import boot
from tests.cluster.conftest import is_running, object_keys, wait_until
from tests.cluster.starter.conftest import Session


class Program:
    """The program as a process, and the engine's end of its socket."""

    def __init__(self, folder: Path, name: str = "ex-0") -> None:
        self.socket, self.call_socket = folder / f"{name}.sock", folder / f"{name}.call"
        environment = {**os.environ, "FLAME_INSTANCE_ENDPOINT": str(self.socket)}
        environment[boot.CALL_SOCKET] = str(self.call_socket)
        self.log = open(folder / f"{name}.out", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *ARGUMENTS], env=environment, cwd=folder, stdout=self.log, stderr=self.log
        )
        wait_until(self.socket.exists, 30, "the program opens its socket")
        self._channel = grpc.insecure_channel(f"unix:{self.socket}")
        self.stub: Any = wire.shim_grpc.InstanceStub(self._channel)

    def enter(self, common_data: bytes) -> int:
        request = wire.shim.SessionContext(session_id="s", common_data=common_data)
        return self.stub.OnSessionEnter(request, timeout=10, wait_for_ready=True).return_code

    def send(self, task_input: bytes) -> dict[str, Any]:
        reply = self.stub.OnTaskInvoke(wire.shim.TaskContext(task_id="1", session_id="s", input=task_input), timeout=60)
        assert reply.return_code == 0
        return unpickle_reply(reply.output)

    def call(self, method: str, *args: Any, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
        request = {"method": method, "arguments": pickle.dumps((args, {})), "seconds": seconds, **fields}
        reply = self.send(pickle.dumps(request))
        return {**reply, "value": pickle.loads(reply["value"])} if "value" in reply else reply

    def end(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        self._channel.close()
        self.log.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()


@pytest.fixture
def bound(program: Program, session: Session) -> Program:
    assert program.enter(common_data(session)) == 0
    return program


def common_data(session: Session, name: str = "context") -> bytes:
    setup = session.setup
    handle = FlightObjects(setup["cache_endpoint"]).put(setup["prefix"], context_object(setup), name)
    return json.dumps({"endpoint": handle.endpoint, "key": handle.key}).encode()


def test_nothing_makes_it_fail(program: Program, cache: ObjectCache) -> None:
    assert program.call("echo", 1)["kind"] == "starter"  # no session is entered
    places = [b"", b"\xff", b"[]", b'{"endpoint": 3}', b'{"endpoint": "grpc://127.0.0.1:9", "key": "a/b/c"}']
    places.append(json.dumps({"endpoint": cache.endpoint, "key": "a/b/none"}).encode())
    odd = FlightObjects(cache.endpoint).put("a/b", b'{"sources": {"x": "raise SystemExit(3)"}, "setup": {}}')
    places.append(json.dumps({"endpoint": odd.endpoint, "key": odd.key}).encode())
    for place in places:
        assert program.enter(place) == 0
        reply = program.call("echo", 1, seconds=0.5)
        assert (reply["kind"], bool(reply["message"])) == ("starter", True)
    for data in (b"", b"\x80\x05garbage", pickle.dumps(None), pickle.dumps({"seconds": "x"}), b"cos\n_exit\n"):
        assert program.send(data)["kind"] == "starter"
    assert program.process.poll() is None


def test_replies_are_outputs(bound: Program, session: Session, cache: ObjectCache) -> None:
    assert bound.call("echo", b"x" * 1000)["value"] == b"x" * 1000
    reply = bound.call("pid")
    assert (reply["executor"], reply["set_up_count"]) == ("ex-0", 1)
    assert bound.call("raise_error", "text")["type"] == "ValueError"
    assert object_keys(cache.endpoint, session.setup["prefix"]) == [f"{session.setup['prefix']}/context"]
    about = bound.call("@about")["value"]
    assert about["pid"] == bound.process.pid
    assert about["service_pid"] == reply["value"]


def test_a_cache_that_comes_back(program: Program, session: Session, tmp_path: Path) -> None:
    data = json.loads(common_data(session))
    probe = ObjectCache()
    port = probe.port
    probe.shutdown()
    assert program.enter(json.dumps({**data, "endpoint": f"grpc://127.0.0.1:{port}"}).encode()) == 0
    late: list[ObjectCache] = []

    def come_back() -> None:
        late.append(ObjectCache(f"grpc://127.0.0.1:{port}"))
        FlightObjects(late[0].endpoint).put(session.setup["prefix"], context_object(session.setup), "context")

    start = time.monotonic()
    threading.Timer(1.0, come_back).start()
    reply = program.call("echo", 1)
    assert time.monotonic() - start > 0.9
    if reply["kind"] != "value":  # it asked between the cache's return and the put
        assert "is not in the cache" in reply["message"]
        reply = program.call("echo", 1)
    assert reply["value"] == 1
    late[0].shutdown()


def test_what_the_service_started_goes(bound: Program, session: Session) -> None:
    started = ("start_child", "start_fork", "start_daemon")

    def start() -> list[int]:
        pids = [bound.call("pid")["value"], bound.call("start_daemon", True)["value"]]
        return pids + [bound.call(method)["value"] for method in started]

    pids = start()
    assert bound.call("kill", signal.SIGSEGV)["kind"] == "died"
    assert not any(map(is_running, pids))
    pids = start()
    bound.stub.OnSessionLeave(wire.types.EmptyRequest(), timeout=10)
    assert not any(map(is_running, pids))
    assert bound.enter(common_data(session, "again")) == 0
    pids = start()
    bound.process.terminate()
    assert bound.process.wait(timeout=10) == 128 + signal.SIGTERM
    assert not any(map(is_running, pids))


def test_the_process_ends_with_it(bound: Program) -> None:
    pid = bound.call("pid")["value"]
    bound.process.kill()
    bound.process.wait(timeout=10)
    wait_until(lambda: not is_running(pid), 5, "the service process ends")


def test_orphans_are_collected(bound: Program) -> None:
    daemon = bound.call("start_daemon")["value"]
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{daemon}"), 10, "it is collected")
    assert bound.call("echo", 1)["set_up_count"] == 1


def test_it_starts_fast(tmp_path: Path) -> None:
    bare = [_seconds([sys.executable, "-c", "import grpc"]) for _ in range(2)]
    seconds: list[float] = []
    for number in range(3):
        start = time.monotonic()
        program = Program(tmp_path, f"ex-{number}")
        seconds.append(time.monotonic() - start)
        program.end()
    assert min(seconds) < min(bare) + 1.0


def _seconds(line: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(line, check=True)
    return time.monotonic() - start


def exchanged(program: Program, data: bytes) -> tuple[int, int, bytes]:
    """The frame that answers `data` on a new connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(program.call_socket))
        connection.sendall(data)
        with connection.makefile("rb") as frames:
            length, number, kind = HEADER.unpack(frames.read(HEADER.size))
            return number, kind, frames.read(length)


def test_call_socket(bound: Program, tmp_path: Path) -> None:
    request = {"method": "variable", "arguments": pickle.dumps(((boot.CALL_SOCKET,), {})), "seconds": 30.0}
    data = pickle.dumps(request)
    frame = HEADER.pack(len(data), 3, REQUEST) + data
    for broken in (b"", frame[:4], frame[:-1]):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(bound.call_socket))
            connection.sendall(broken)
    number, kind, output = exchanged(bound, frame)
    assert (number, kind) == (3, END)
    assert pickle.loads(unpickle_reply(output)["value"]) is None
    number, _, output = exchanged(bound, HEADER.pack(3, 4, REQUEST) + b"odd")
    assert (number, unpickle_reply(output)["kind"]) == (4, "starter")
    assert bound.call("echo", 1)["value"] == 1
    (tmp_path / "ex-1.call").touch()
    without = Program(tmp_path, "ex-1")
    assert without.enter(b"") == 0
    without.end()
