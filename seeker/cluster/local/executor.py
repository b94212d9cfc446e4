"""One executor: a process that serves one session's calls over a unix socket, one at a time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local import launch
from seeker.cluster.local.guardian import GroupWatch
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.process import ExecutorProcess, GoneError, ProcessError
from seeker.cluster.local.records import SessionRecord, TaskRecord
from seeker.cluster.resources import Resources

_log = logging.getLogger("seeker.cluster.local")

RC_INSTALL, RC_LAUNCH, RC_ENTER = 10, 11, 12  # return codes in the text of event 1001
_BIND_BACKOFF_S = 0.05  # doubled at every failure: about 1.5 s until the session is given up
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
    log_dir: Path
    node: str
    environment: dict[str, str]  # the cluster's endpoints
    groups: GroupWatch
    socket_deadline_s: float = 30.0
    enter_deadline_s: float = 600.0
    leave_deadline_s: float = 1.0
    kill_after_s: float = 1.0


class BindError(Exception):
    """The process could not be made ready for the session."""

    def __init__(self, return_code: int, message: str) -> None:
        self.return_code = return_code
        super().__init__(message)


class Executor:
    """Binding, bound (a loop of calls), unbinding. `run` raises only when it is cancelled."""

    def __init__(
        self,
        settings: ExecutorSettings,
        packages: Packages,
        session: SessionRecord,
        resources: Resources,
        gpus: tuple[int, ...],
        on_bound: Callable[[], None],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.session = session
        self.resources = resources
        self.gpus = gpus
        self.state = wire.EXECUTOR_BINDING
        self._settings = settings
        self._packages = packages
        self._on_bound = on_bound
        self._socket = settings.root / f"{self.id}.sock"
        self._directory = settings.root / "work" / self.id
        self._process = ExecutorProcess(self._socket, settings.log_dir / f"executor-{self.id}.log", settings.groups)
        self._channel: Any = None
        self._instance: Any = None

    def to_wire(self) -> Any:
        resreq = wire.types.ResourceRequirement(
            cpu=self.resources.cpu, memory=self.resources.memory_bytes, gpu=self.resources.gpu
        )
        return wire.types.Executor(
            metadata=wire.types.Metadata(id=self.id, name=self.id),
            spec=wire.types.ExecutorSpec(node=self._settings.node, resreq=resreq, shim=0),
            status=wire.types.ExecutorStatus(state=self.state, session_id=self.session.id),
        )

    async def run(self) -> None:
        try:
            await self._bind()
            self.session.bind_failures = 0
            self.state = wire.EXECUTOR_BOUND
            self._on_bound()
            await self._serve()
        except BindError as error:
            await self._report(error)
        finally:
            await self._release()

    async def _report(self, error: BindError) -> None:
        text = (
            f"Executor <{self.id}> on node <{self._settings.node}> failed to bind session with return_code "
            f"<{error.return_code}>: {error}{self._process.log_tail()}"
        )
        _log.warning("%s", text)
        if self.session.is_open:
            self.session.bind_failed(text)
            await asyncio.sleep(_BIND_BACKOFF_S * 2**self.session.bind_failures)

    # -- binding ---------------------------------------------------------------------------------------------------

    async def _bind(self) -> None:
        command = await self._command()
        try:
            await self._process.start(command, self._settings.socket_deadline_s)
        except ProcessError as error:
            raise BindError(RC_LAUNCH, str(error)) from error
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL_OPTIONS)
        self._instance = wire.shim_grpc.InstanceStub(self._channel)
        await self._enter_session()

    async def _command(self) -> launch.Command:
        application = self.session.application
        spec = application.spec
        loop = asyncio.get_running_loop()
        try:
            packages = await loop.run_in_executor(None, self._packages.paths, application)
        except Exception as error:  # whatever is wrong with the package is this bind's failure, not the server's
            raise BindError(RC_INSTALL, f"cannot unpack {spec.url!r}: {error}") from error
        own = {**self._settings.environment, "FLAME_INSTANCE_ENDPOINT": str(self._socket)}
        environment = launch.environment_of(spec, own, packages, self.gpus)
        line = launch.command_line(spec, environment, self._settings.python)
        return launch.Command(line, environment, Path(spec.working_directory or self._directory))

    async def _enter_session(self) -> None:
        application, spec = self.session.application, self.session.application.spec
        fields = ("image", "command", "working_directory", "url", "installer")
        named = {field: getattr(spec, field) for field in fields if spec.HasField(field)}
        context = wire.shim.ApplicationContext(name=application.name, shim=spec.shim, **named)
        data = self.session.spec.common_data if self.session.spec.HasField("common_data") else None
        request = wire.shim.SessionContext(session_id=self.session.id, application=context, common_data=data)
        enter = self._instance.OnSessionEnter(request, timeout=self._settings.enter_deadline_s)
        try:
            reply = await self._process.while_alive(enter)
        except (grpc.RpcError, GoneError) as error:
            raise BindError(RC_ENTER, f"entering the session failed: {self._failure_text(error)}") from error
        if reply.return_code != 0:
            raise BindError(RC_ENTER, reply.message)

    # -- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while self._process.is_alive:
            task = await self._next_task(self.session.application.spec.delay_release)
            if task is None:
                return
            if task.state == wire.TASK_PENDING:  # a close may have cancelled it meanwhile
                await self._invoke(task)

    async def _next_task(self, delay_release_s: float) -> TaskRecord | None:
        """None: idle for too long, session closed, or process gone."""
        taker = self.session.take()
        try:
            waiting: list[asyncio.Future[Any]] = [taker, self._process.exited]
            await asyncio.wait(waiting, timeout=delay_release_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.session.give_back(taker)
            raise
        if taker.done() and self._process.is_alive:
            return taker.result()
        self.session.give_back(taker)
        return None

    async def _invoke(self, task: TaskRecord) -> None:
        self.session.move(task, wire.TASK_RUNNING)
        request = wire.shim.TaskContext(task_id=str(task.id), session_id=self.session.id, input=task.input)
        try:
            reply = await self._process.while_alive(self._instance.OnTaskInvoke(request))
        except (grpc.RpcError, GoneError) as error:
            text = f"transport error: executor <{self.id}>: {self._failure_text(error)}{self._process.log_tail()}"
            _log.warning("call %s/%d: %s", self.session.id, task.id, text)
            self.session.move(task, wire.TASK_FAILED, message=text)
            if self._process.is_alive and _is_unavailable(error):
                self._process.signal(signal.SIGKILL)  # alive but deaf: of no use any more
        except asyncio.CancelledError:
            self.session.move(task, wire.TASK_FAILED, message="the cluster was stopped")
            raise
        else:
            output = reply.output if reply.HasField("output") else None
            if reply.return_code == 0:
                self.session.move(task, wire.TASK_SUCCEED, output)
            else:
                self.session.move(task, wire.TASK_FAILED, output, message=reply.message)

    def _failure_text(self, error: Any) -> str:
        if not self._process.is_alive:
            return f"the process {self._process.exit_text()}"
        return f"{error.code().name}: {error.details()}"

    # -- ending ----------------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        """Leave, end the whole process group, remove socket and directory."""
        if self.state == wire.EXECUTOR_BOUND and self._process.is_alive:
            self.state = wire.EXECUTOR_UNBINDING
            await self._leave()
        self.state = wire.EXECUTOR_RELEASING
        await self._process.end(self._settings.kill_after_s)
        if self._channel is not None:
            await self._channel.close()
        self._socket.unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _leave(self) -> None:
        leave = self._instance.OnSessionLeave(wire.types.EmptyRequest(), timeout=self._settings.leave_deadline_s)
        try:
            await self._process.while_alive(leave)
        except (grpc.RpcError, GoneError) as error:
            _log.info("executor %s left its session without an answer: %s", self.id, self._failure_text(error))


def _is_unavailable(error: BaseException) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.UNAVAILABLE
