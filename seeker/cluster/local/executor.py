"""One executor: a process that serves one session's calls over a unix socket, one at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local import launch
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.state import SessionRecord, TaskRecord
from seeker.cluster.resources import Resources

_log = logging.getLogger("seeker.cluster.local")

RC_INSTALL, RC_LAUNCH, RC_ENTER = 10, 11, 12  # return codes in the text of event 1001
_SOCKET_POLL_S = 0.005
_BIND_BACKOFF_S = 0.05  # doubled at every failure: about 1.5 s until the session is given up
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What all executors of a cluster share."""

    python: str
    root: Path  # private: sockets, packages, working directories
    log_dir: Path
    node: str
    environment: dict[str, str]  # the cluster's endpoints
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
    """Binding -> bound (a loop of calls) -> unbinding. `run` never raises, except when it is cancelled."""

    def __init__(
        self,
        settings: ExecutorSettings,
        packages: Packages,
        session: SessionRecord,
        resources: Resources,
        gpus: tuple[int, ...],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.session = session
        self.resources = resources
        self.gpus = gpus
        self.state = wire.EXECUTOR_BINDING
        self._settings = settings
        self._packages = packages
        self._socket = settings.root / f"{self.id}.sock"
        self._directory = settings.root / "work" / self.id
        self._log_path = settings.log_dir / f"executor-{self.id}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._exited: asyncio.Future[int] | None = None
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
            await self._serve()
        except BindError as error:
            text = (
                f"Executor <{self.id}> on node <{self._settings.node}> failed to bind session with return_code "
                f"<{error.return_code}>: {error}{self._log_tail()}"
            )
            _log.warning("%s", text)
            if self.session.is_open:
                self.session.bind_failed(text)
                await asyncio.sleep(_BIND_BACKOFF_S * 2**self.session.bind_failures)
        finally:
            self.state = wire.EXECUTOR_UNBINDING
            await self._release()

    # -- binding ------------------------------------------------------------------------------------------------

    async def _bind(self) -> None:
        command = await self._command()
        await self._spawn(command)
        await self._await_socket()
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        self._instance = wire.shim_grpc.InstanceStub(self._channel)
        await self._enter_session()

    async def _command(self) -> launch.Command:
        application = self.session.application
        loop = asyncio.get_running_loop()
        try:
            packages = await loop.run_in_executor(None, self._packages.paths, application)
        except Exception as error:  # whatever is wrong with the package is this bind's failure, not the server's
            raise BindError(RC_INSTALL, f"cannot unpack {application.spec.url!r}: {error}") from error
        own = {**self._settings.environment, "FLAME_INSTANCE_ENDPOINT": str(self._socket)}
        environment = launch.environment_of(application.spec, own, packages, self.gpus)
        line = launch.command_line(application.spec, environment, self._settings.python)
        directory = Path(application.spec.working_directory or self._directory)
        return launch.Command(line, environment, directory)

    async def _spawn(self, command: launch.Command) -> None:
        leash = (sys.executable, "-I", "-S", "-c", launch.LEASH, str(os.getpid()))
        try:
            command.directory.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *leash,
                    *command.line,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=command.directory,
                    env=command.environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise BindError(RC_LAUNCH, f"cannot start {command.line[0]!r}: {error}") from error
        self._exited = asyncio.ensure_future(self._process.wait())

    async def _await_socket(self) -> None:
        """Until something accepts on the socket; a dead process or the deadline ends the wait."""
        deadline = asyncio.get_running_loop().time() + self._settings.socket_deadline_s
        while not self._accepts():
            if self._has_exited():
                raise BindError(RC_LAUNCH, f"the process {self._exit_text()} before it opened its socket")
            if asyncio.get_running_loop().time() > deadline:
                seconds = self._settings.socket_deadline_s
                raise BindError(RC_LAUNCH, f"the process did not open its socket within {seconds:g} s")
            await asyncio.sleep(_SOCKET_POLL_S)

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    async def _enter_session(self) -> None:
        application, spec = self.session.application, self.session.application.spec
        fields = ("image", "command", "working_directory", "url", "installer")
        context = wire.shim.ApplicationContext(
            name=application.name,
            shim=spec.shim,
            **{field: getattr(spec, field) for field in fields if spec.HasField(field)},
        )
        data = self.session.spec.common_data if self.session.spec.HasField("common_data") else None
        request = wire.shim.SessionContext(session_id=self.session.id, application=context, common_data=data)
        try:
            reply = await self._call(self._instance.OnSessionEnter(request, timeout=self._settings.enter_deadline_s))
        except grpc.RpcError as error:
            raise BindError(RC_ENTER, f"entering the session failed: {self._failure_text(error)}") from error
        if reply.return_code != 0:
            raise BindError(RC_ENTER, reply.message)

    # -- serving ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        delay_release_s = self.session.application.spec.delay_release
        while not self._has_exited():
            task = await self._next_task(delay_release_s)
            if task is None:
                return
            if task.state == wire.TASK_PENDING:  # a close may have cancelled it meanwhile
                await self._invoke(task)

    async def _next_task(self, delay_release_s: float) -> TaskRecord | None:
        """None: idle for too long, session closed, or process gone."""
        assert self._exited is not None
        taker = self.session.take()
        try:
            waiting: list[asyncio.Future[Any]] = [taker, self._exited]
            await asyncio.wait(waiting, timeout=delay_release_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.session.give_back(taker)
            raise
        if taker.done() and not self._has_exited():
            return taker.result()
        self.session.give_back(taker)
        return None

    async def _invoke(self, task: TaskRecord) -> None:
        self.session.move(task, wire.TASK_RUNNING)
        request = wire.shim.TaskContext(task_id=str(task.id), session_id=self.session.id, input=task.input)
        try:
            reply = await self._call(self._instance.OnTaskInvoke(request))
        except grpc.RpcError as error:
            text = f"transport error: executor <{self.id}>: {self._failure_text(error)}{self._log_tail()}"
            _log.warning("call %s/%d: %s", self.session.id, task.id, text)
            self.session.move(task, wire.TASK_FAILED, message=text)
            if not self._has_exited() and error.code() == grpc.StatusCode.UNAVAILABLE:
                self._kill(signal.SIGKILL)  # alive but deaf: of no use any more
        except asyncio.CancelledError:
            self.session.move(task, wire.TASK_FAILED, message="the cluster was stopped")
            raise
        else:
            output = reply.output if reply.HasField("output") else None
            if reply.return_code == 0:
                self.session.move(task, wire.TASK_SUCCEED, output)
            else:
                self.session.move(task, wire.TASK_FAILED, output, message=reply.message)

    async def _call(self, call: Any) -> Any:
        """Await a call to the process; its death ends the wait at once."""
        assert self._exited is not None
        reply = asyncio.ensure_future(call)
        waiting: list[asyncio.Future[Any]] = [reply, self._exited]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                await asyncio.wait([reply], timeout=0.2)  # the reply may have been sent before the exit
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not reply.done():
            call.cancel()
        try:
            return await reply
        except asyncio.CancelledError as error:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "the process is gone"
            ) from error

    # -- ending -------------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        """Leave, TERM, KILL the whole process group, remove socket and directory."""
        if self._exited is not None:
            if not self._has_exited() and self._instance is not None and self.state != wire.EXECUTOR_BINDING:
                await self._leave()
            self._kill(signal.SIGTERM)
            await asyncio.wait([self._exited], timeout=self._settings.kill_after_s)
            self._kill(signal.SIGKILL)
            await asyncio.wait([self._exited], timeout=5.0)
        if self._channel is not None:
            await self._channel.close()
        self._socket.unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _leave(self) -> None:
        request = wire.types.EmptyRequest()
        try:
            await self._call(self._instance.OnSessionLeave(request, timeout=self._settings.leave_deadline_s))
        except grpc.RpcError as error:
            _log.info("executor %s left its session without an answer: %s", self.id, error.code())

    def _kill(self, signum: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signum)
        except ProcessLookupError:
            return

    def _has_exited(self) -> bool:
        return self._exited is not None and self._exited.done()

    def _exit_text(self) -> str:
        assert self._exited is not None
        code = self._exited.result()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _failure_text(self, error: Any) -> str:
        if self._has_exited():
            return f"the process {self._exit_text()}"
        return f"{error.code().name}: {error.details()}"

    def _log_tail(self) -> str:
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
                tail = log.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
        return f"\n--- end of {self._log_path.name} ---\n{tail}" if tail else ""
