"""Pinned behaviour of the ways without gRPC: from a driver to its embedded cluster, and from there to our executors.

1.  A request is answered with the same message or typed error as over gRPC; streams come message by message.
2.  Frames arrive whole, however the bytes are cut.
3.  A message above the limit is refused, both ways; others go on. A method that fails is an error, not a silence.
4.  Every request ends at its deadline, and the cluster is told of one that is not wanted any more.
5.  A lost connection fails what is outstanding on it and the next request makes another; a request to a cluster that is
    gone says that it was not sent; one to a closed client says that.
6.  A call whose connection drops, again and again, still has its result.
7.  Our executors have a socket for calls; it is gone with an executor that is killed, whose call fails.
8.  A call socket that breaks fails its calls as a lost gRPC connection does, without a process that has ended, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from seeker.cluster import wire
from seeker.cluster.calls import LostError
from seeker.cluster.client import Cluster, Service
from seeker.cluster.frame_link import FrameLink
from seeker.cluster.frames import HEADER, MESSAGE, FrameProtocol
from seeker.cluster.frontend import FrontendClient, RefusedError
from seeker.cluster.grpc_link import GrpcLink
from seeker.cluster.local.call_line import open_line
from seeker.cluster.local.frame_server import FrameServer
from seeker.cluster.loop import shared_loop
from seeker.errors import ClusterError, DeadlineError
from tests.cluster.conftest import wait_until

ECHO = "tests.cluster.services:Echo"
EMPTY = wire.frontend.ListNodesRequest()


class ScriptedFrontend:
    """Its methods have the protocol's names."""

    def __init__(self) -> None:
        self.num_cancelled = 0

    async def GetNode(self, request: Any, context: Any) -> Any:
        if request.name == "raise":
            raise KeyError("scripted")
        if request.name == "hang":
            try:
                await asyncio.sleep(60)
            finally:
                self.num_cancelled += 1
        name = "x" * (wire.MESSAGE_LIMIT_BYTES + 1) if request.name == "large" else request.name[:10]
        return wire.frontend.GetNodeResponse(node=wire.types.Node(metadata=wire.types.Metadata(name=name)))

    async def ListTask(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for number in range(3):
            yield wire.types.Task(metadata=wire.types.Metadata(id=str(number)))
        if request.session_id == "endless":
            try:
                await asyncio.sleep(60)
            finally:
                self.num_cancelled += 1


class Scripted:
    """A frontend behind a socket, and a link to it."""

    def __init__(self, path: str) -> None:
        self.frontend = ScriptedFrontend()
        self.server = FrameServer(self.frontend, path)
        self.link = FrameLink(path)

    def ask(self, name: str, deadline_s: float = 30) -> str:
        request = wire.frontend.GetNodeRequest(name=name)
        return shared_loop().wait(self.link.ask("GetNode", request, deadline_s)).node.metadata.name


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    made = Scripted(str(tmp_path / "frames.sock"))
    shared_loop().wait(made.server.start())
    yield made
    shared_loop().wait(made.link.close())
    shared_loop().wait(stopped(made.server))


async def stopped(server: FrameServer) -> None:
    server.stop()


@pytest.fixture(scope="module")
def echo(cluster: Cluster) -> Iterator[Service]:
    with cluster.start("frames", ECHO, {}, resources="mem=64m") as service:
        yield service


def test_answers_are_those_of_grpc(cluster: Cluster, echo: Service) -> None:  # 1
    echo.call("echo", 1, deadline_s=30).result()
    session = echo.prefix.rpartition("/")[2]
    by_grpc = FrontendClient(cluster.endpoint, None, 10)
    clients = (cluster._frontend, by_grpc)
    assert [type(client._link) for client in clients] == [FrameLink, GrpcLink]
    requests = {
        "GetSession": wire.frontend.GetSessionRequest(session_id=session),
        "ListExecutor": wire.frontend.ListExecutorRequest(),
        "GetTask": wire.frontend.GetTaskRequest(session_id=session, task_id="1"),
    }
    for method, request in requests.items():
        answers = [client.request(method, request) for client in clients]
        assert answers[0] == answers[1], method
    for method, request in refusals():
        errors = [refusal(client, method, request) for client in clients]
        assert errors[0] == errors[1], method
    listed = [shared_loop().wait(tasks_of(client, session)) for client in clients]
    assert listed[0] == listed[1]
    assert [task.metadata.id for task in listed[0]] == ["1"]
    by_grpc.close()


def refusals() -> list[tuple[str, Any]]:
    task = wire.types.TaskSpec(session_id="none", input=b"")
    return [
        ("GetSession", wire.frontend.GetSessionRequest(session_id="none")),
        ("GetNode", wire.frontend.GetNodeRequest(name="none")),
        ("CreateTask", wire.frontend.CreateTaskRequest(task=task)),
    ]


def refusal(client: FrontendClient, method: str, request: Any) -> tuple[str, bool, str]:
    with pytest.raises(RefusedError) as caught:
        client.request(method, request)
    return caught.value.status, caught.value.unsent, str(caught.value).partition(": ")[2]


async def tasks_of(client: FrontendClient, session: str) -> list[Any]:
    request = wire.frontend.ListTaskRequest(session_id=session)
    return [task async for task in client._link.stream("ListTask", request, 10)]


class Recorder(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, int, bytes]] = []

    def arrived(self, number: int, kind: int, payload: bytes) -> None:
        self.frames.append((number, kind, payload))

    def lost(self) -> None:
        return


def test_frames_are_whole_however_they_are_cut() -> None:  # 2
    frames = [(1, MESSAGE, b""), (2**32 - 1, MESSAGE, b"x" * 20), (7, MESSAGE, b"\0\xff")]
    stream = b"".join(HEADER.pack(len(payload), number, kind) + payload for number, kind, payload in frames)
    for size in range(1, len(stream) + 1):
        recorder = Recorder()
        for begin in range(0, len(stream), size):
            recorder.data_received(stream[begin : begin + size])
        assert recorder.frames == frames, size


def test_limits_and_failures(scripted: Scripted) -> None:  # 3
    request = wire.frontend.GetNodeRequest(name="x" * wire.MESSAGE_LIMIT_BYTES)
    for name in (request.name, "large"):
        with pytest.raises(RefusedError, match=f"the limit is {wire.MESSAGE_LIMIT_BYTES}") as caught:
            scripted.ask(name)
        assert caught.value.status == "RESOURCE_EXHAUSTED"
    with pytest.raises(RefusedError, match="KeyError: 'scripted'") as failed:
        scripted.ask("raise")
    assert failed.value.status == "UNKNOWN"
    assert scripted.ask("y" * (wire.MESSAGE_LIMIT_BYTES - 100)) == "y" * 10


def test_deadlines_and_what_is_not_wanted(scripted: Scripted) -> None:  # 4
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"GetNode .* no answer within 0.2 s"):
        scripted.ask("hang", deadline_s=0.2)
    assert time.monotonic() - start < 3
    wait_until(lambda: scripted.frontend.num_cancelled == 1, 5, "the request is cancelled at the server")
    shared_loop().wait(first_of_many(scripted.link))
    wait_until(lambda: scripted.frontend.num_cancelled == 2, 5, "the stream is cancelled at the server")


async def first_of_many(link: FrameLink) -> None:
    stream = link.stream("ListTask", wire.frontend.ListTaskRequest(session_id="endless"), 30)
    assert [(await anext(stream)).metadata.id for _ in range(3)] == ["0", "1", "2"]
    await stream.aclose()


def test_a_lost_connection(scripted: Scripted) -> None:  # 5
    hanging = shared_loop().wait(begun(scripted.link.ask("GetNode", wire.frontend.GetNodeRequest(name="hang"), 30)))
    shared_loop().soon(scripted.link._peer.close)
    with pytest.raises(RefusedError, match="the connection was closed") as lost:
        shared_loop().wait(result_of(hanging))
    assert (lost.value.status, lost.value.unsent) == ("UNAVAILABLE", False)
    wait_until(lambda: scripted.frontend.num_cancelled == 1, 5, "what nobody can be told is cancelled")
    assert scripted.ask("again") == "again"
    shared_loop().wait(stopped(scripted.server))
    wait_until(lambda: not scripted.link._peer.is_connected, 5, "the server's end is closed")
    with pytest.raises(RefusedError, match="failed to connect") as gone:
        scripted.ask("more")
    assert (gone.value.status, gone.value.unsent) == ("UNAVAILABLE", True)
    shared_loop().wait(scripted.link.close())
    with pytest.raises(ClusterError, match="this cluster was closed here"):
        scripted.ask("more")


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = shared_loop().task(work)
    await asyncio.sleep(0.1)
    return task


async def result_of(task: asyncio.Task[Any]) -> Any:
    return await task


def test_dropped_connections_cost_no_result(cluster: Cluster, echo: Service) -> None:  # 6
    link: Any = cluster._frontend._link
    calls = [echo.call("sleep", 0.3, deadline_s=60) for _ in range(4)]
    num_dropped = 0
    while not all(call.done() for call in calls):
        time.sleep(0.15)
        if link._peer.exchanges:
            shared_loop().soon(link._peer.close)
            num_dropped += 1
    assert num_dropped > 3
    assert [call.result() for call in calls] == [0.3] * 4


def call_sockets(cluster: Cluster) -> list[str]:
    assert cluster._embedded is not None
    assert cluster._embedded.root is not None
    return sorted(path.name for path in cluster._embedded.root.glob("*.call"))


def test_a_call_socket_that_breaks(tmp_path: Path) -> None:  # 8
    errors = shared_loop().wait(errors_of_a_broken_line(tmp_path / "x.call"))
    assert [error.code().name for error in errors] == ["UNAVAILABLE"] * 2


async def errors_of_a_broken_line(path: Path) -> list[Any]:
    """Of a call that is outstanding when the other end closes, and of one after it."""
    assert await open_line(path) is None

    async def read_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.close()

    server = await asyncio.start_unix_server(read_and_close, path)
    line = await open_line(path)
    assert line is not None
    errors = [await asyncio.wait_for(error_of(line.call(b"x")), 10) for _ in range(2)]
    server.close()
    return errors


async def error_of(call: asyncio.Future[bytes]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return caught.value


def test_call_sockets(cluster: Cluster, echo: Service) -> None:  # 7
    about = echo.call("about", deadline_s=30).result()
    assert f"{about['executor']}.call" in call_sockets(cluster)
    call = echo.call("sleep", 30, deadline_s=60)
    wait_until(lambda: cluster_runs(cluster, echo), 10, "the call has begun")
    os.kill(about["parent"], signal.SIGKILL)
    with pytest.raises(LostError, match=r"transport error: executor <.*>: the process was killed by SIGKILL"):
        call.result()
    assert echo.call("about", deadline_s=30).result()["executor"] != about["executor"]
    wait_until(lambda: f"{about['executor']}.call" not in call_sockets(cluster), 10, "its socket is gone")


def cluster_runs(cluster: Cluster, service: Service) -> bool:
    request = wire.frontend.GetSessionRequest(session_id=service.prefix.rpartition("/")[2])
    return cluster._frontend.request("GetSession", request).status.running == 1
