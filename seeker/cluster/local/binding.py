"""One process bound to one session: launched, entered, called, left, ended. Which of these when is the executor's."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local import launch
from seeker.cluster.local.call_line import CallLine, open_line
from seeker.cluster.local.guardian import GroupWatch
from seeker.cluster.local.logs import LogKeeper
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.process import ExecutorProcess, GoneError, ProcessError
from seeker.cluster.local.records import SessionRecord, TaskRecord
from seeker.cluster.starter import boot

_log = logging.getLogger("seeker.cluster.local")

RC_INSTALL, RC_LAUNCH, RC_ENTER, RC_UNKNOWN = 10, 11, 12, 19  # return codes in the text of event 1001
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What all executors of a cluster share."""

    python: str
    root: Path  # private: sockets, packages, working directories
    logs: LogKeeper
    node: str
    environment: dict[str, str]  # the cluster's endpoints
    groups: GroupWatch
    direct_calls: bool = True  # without gRPC, to executors of ours
    devices: tuple[str, ...] = ()  # for CUDA_VISIBLE_DEVICES, one for each GPU of the node's capacity
    socket_deadline_s: float = 30.0
    enter_deadline_s: float = 600.0
    leave_deadline_s: float = 1.0
    kill_after_s: float = 1.0


class BindError(Exception):
    """The process could not be made ready for the session."""

    def __init__(self, return_code: int, message: str) -> None:
        self.return_code = return_code
        super().__init__(message)


class Binding:
    """Serves one session from `launch` to `end`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        packages: Packages,
        session: SessionRecord,
        executor: str,
        gpus: tuple[int, ...] = (),
    ) -> None:
        self.session = session
        self._settings = settings
        self._packages = packages
        self._gpus = gpus
        self._socket = settings.root / f"{executor}.sock"
        self._call_socket = settings.root / f"{executor}.call"
        self._directory = settings.root / "work" / executor
        self._log = settings.logs.begin(executor)
        self.process = ExecutorProcess(self._socket, self._log, settings.groups)
        self._channel: Any = None
        self._instance: Any = None
        self._line: CallLine | None = None

    async def launch(self) -> None:
        command = await self._command()
        try:
            self.process.spawn(command)
        except ProcessError as error:
            raise BindError(RC_LAUNCH, str(error)) from error

    async def _command(self) -> launch.Command:
        application = self.session.application
        spec = application.spec
        loop = asyncio.get_running_loop()
        try:
            packages = await loop.run_in_executor(None, self._packages.paths, application)
        except Exception as error:  # whatever is wrong with the package is this bind's failure, not the server's
            raise BindError(RC_INSTALL, f"cannot unpack {spec.url!r}: {error}") from error
        own = {**self._settings.environment, "FLAME_INSTANCE_ENDPOINT": str(self._socket)}
        if self._settings.direct_calls:
            own[boot.CALL_SOCKET] = str(self._call_socket)
        environment = launch.environment_of(spec, own, packages, self._devices())
        line = launch.command_line(spec, environment, self._settings.python)
        return launch.Command(line, environment, Path(spec.working_directory or self._directory))

    def _devices(self) -> tuple[str, ...]:
        """Names of the assigned GPUs, each once: the capacity may be set to more than there are, to share them."""
        named = self._settings.devices
        return tuple(dict.fromkeys(named[gpu] if gpu < len(named) else str(gpu) for gpu in self._gpus))

    async def await_socket(self) -> None:
        try:
            await self.process.await_socket(self._settings.socket_deadline_s)
        except ProcessError as error:
            raise BindError(RC_LAUNCH, str(error)) from error

    def connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL_OPTIONS)
        self._instance = wire.shim_grpc.InstanceStub(self._channel)

    async def enter(self, deadline_s: float | None) -> None:
        """Tell it its session: where services are constructed."""
        application, spec = self.session.application, self.session.application.spec
        fields = ("image", "command", "working_directory", "url", "installer")
        named = {field: getattr(spec, field) for field in fields if spec.HasField(field)}
        context = wire.shim.ApplicationContext(name=application.name, shim=spec.shim, **named)
        data = self.session.spec.common_data if self.session.spec.HasField("common_data") else None
        request = wire.shim.SessionContext(session_id=self.session.id, application=context, common_data=data)
        reply = await self.process.while_alive(self._instance.OnSessionEnter(request, timeout=deadline_s))
        if reply.return_code != 0:
            raise BindError(RC_ENTER, reply.message)
        if self._settings.direct_calls:
            self._line = await open_line(self._call_socket)

    async def invoke(self, task: TaskRecord) -> None:
        """One call, moved to succeeded or failed by its reply; without one, `GoneError` or an RPC's error is raised."""
        if self._line is not None:
            output = await self.process.while_alive(self._line.call(task.input or b""))
            self.session.move(task, wire.TASK_SUCCEED, output)
            return
        request = wire.shim.TaskContext(task_id=str(task.id), session_id=self.session.id, input=task.input)
        reply = await self.process.while_alive(self._instance.OnTaskInvoke(request))
        output = reply.output if reply.HasField("output") else None
        if reply.return_code == 0:
            self.session.move(task, wire.TASK_SUCCEED, output)
        else:
            self.session.move(task, wire.TASK_FAILED, output, message=reply.message)

    async def leave(self) -> None:
        leave = self._instance.OnSessionLeave(wire.types.EmptyRequest(), timeout=self._settings.leave_deadline_s)
        try:
            await self.process.while_alive(leave)
        except (grpc.RpcError, GoneError) as error:
            _log.info("session %s was left without an answer: %s", self.session.id, self.failure_text(error))

    def failure_text(self, error: Any) -> str:
        if not self.process.is_alive:
            return f"the process {self.process.exit_text()}"
        return f"{error.code().name}: {error.details()}"

    async def end(self) -> None:
        """End the whole process group, remove socket and directory."""
        await self.process.end(self._settings.kill_after_s)
        if self._line is not None:
            self._line.close()
        if self._channel is not None:
            await self._channel.close()
        self._settings.logs.end(self._log)
        sockets = [self._socket, self._call_socket]
        await asyncio.get_running_loop().run_in_executor(None, _remove, sockets, self._directory)


def _remove(sockets: list[Path], directory: Path) -> None:
    for path in sockets:
        path.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
