"""An embedded cluster spoken to in raw protocol messages, for tests of what servers do below every client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from tests.cluster.conftest import wait_until

ROOT = str(Path(__file__).resolve().parents[2])
BINDING, BOUND, UNBINDING = wire.EXECUTOR_BINDING, wire.EXECUTOR_BOUND, wire.EXECUTOR_UNBINDING


class RawCluster:
    """Sessions of an application whose processes are `raw_service.py`. Example: ``raw.open("s", max_instances=1)``."""

    def __init__(self, description: dict[str, Any], pid: int) -> None:
        self.description = description
        self.pid = pid
        self._channel = grpc.insecure_channel(description["endpoint"].removeprefix("http://"))
        self.stub = wire.frontend_grpc.FrontendStub(self._channel)

    def register(self, name: str, arguments: tuple[str, ...] = (), delay_release: int = 60, **fields: Any) -> str:
        spec = wire.types.ApplicationSpec(
            command=sys.executable,
            arguments=["-m", "tests.cluster.raw_service", *arguments],
            environments=[wire.types.Environment(name="PYTHONPATH", value=ROOT)],
            delay_release=delay_release,
            **fields,
        )
        result = self.stub.RegisterApplication(
            wire.frontend.RegisterApplicationRequest(name=name, application=spec), timeout=10
        )
        assert result.return_code == 0, result.message
        return name

    def open(self, application: str, data: bytes | None = None, cpu: int = 1, gpu: int = 0, **fields: Any) -> str:
        """The id of a new session."""
        resreq = wire.types.ResourceRequirement(cpu=cpu, memory=2**20, gpu=gpu)
        fields.setdefault("batch_size", 1)
        spec = wire.types.SessionSpec(application=application, common_data=data, resreq=resreq, **fields)
        request = wire.frontend.CreateSessionRequest(session_id=f"{application}-{uuid.uuid4().hex[:6]}", session=spec)
        return self.stub.CreateSession(request, timeout=10).metadata.id

    def submit(self, session: str, text: str) -> str:
        spec = wire.types.TaskSpec(session_id=session, input=text.encode())
        return self.stub.CreateTask(wire.frontend.CreateTaskRequest(task=spec), timeout=10).metadata.id

    def watch(self, session: str, task: str, seconds: float = 30) -> Any:
        """The last message of its stream."""
        request = wire.frontend.WatchTaskRequest(session_id=session, task_id=task)
        return list(self.stub.WatchTask(request, timeout=seconds))[-1]

    def call(self, session: str, text: str, seconds: float = 30) -> str:
        task = self.watch(session, self.submit(session, text), seconds)
        assert task.status.state == wire.TASK_SUCCEED, task
        return task.spec.output.decode()

    def task(self, session: str, task: str) -> Any:
        return self.stub.GetTask(wire.frontend.GetTaskRequest(session_id=session, task_id=task), timeout=10)

    def session(self, session: str) -> Any:
        return self.stub.GetSession(wire.frontend.GetSessionRequest(session_id=session), timeout=10)

    def close(self, session: str) -> Any:
        return self.stub.CloseSession(wire.frontend.CloseSessionRequest(session_id=session), timeout=10)

    def executors(self, session: str | None = None) -> list[Any]:
        found = self.stub.ListExecutor(wire.frontend.ListExecutorRequest(), timeout=10).executors
        return [each for each in found if session is None or each.status.session_id == session]

    def states(self, session: str | None = None) -> list[int]:
        return sorted(each.status.state for each in self.executors(session))

    def await_states(self, session: str | None, states: list[int], seconds: float = 15) -> None:
        wait_until(lambda: self.states(session) == sorted(states), seconds, f"executors of {session} in {states}")

    def stop(self) -> None:
        self._channel.close()


@contextmanager
def raw_cluster(*options: str) -> Iterator[RawCluster]:
    line = [sys.executable, "-m", "seeker.cluster.local", "--python", sys.executable, *options]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    raw = RawCluster(json.loads(process.stdout.readline()), process.pid)
    try:
        yield raw
    finally:
        raw.stop()
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()
