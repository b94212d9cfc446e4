"""One executor: a process that serves one session's calls over a unix socket, one at a time."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local.binding import RC_ENTER, RC_UNKNOWN, BindError, Binding, ExecutorSettings
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.process import GoneError
from seeker.cluster.local.records import SessionRecord, TaskRecord
from seeker.cluster.resources import Resources

_log = logging.getLogger("seeker.cluster.local")

_BIND_BACKOFF_S = 0.05  # doubled at every failure: about 1.5 s until the session is given up
_MAX_BACKOFF_S = 5.0


class Executor:
    """Binding, bound (a loop of calls), unbinding. `run` raises only when it is cancelled.

    It ends when its session is closed, after `delay_release` without a call, when its process is gone, or when it is
    given up: a waiting one at once, a busy one after its call.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        packages: Packages,
        session: SessionRecord,
        resources: Resources,
        gpus: tuple[int, ...],
        on_bound: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.session = session
        self.resources = resources
        self.gpus = gpus
        self.state = wire.EXECUTOR_BINDING
        self.born_s = time.monotonic()
        self.is_idle = False
        self._has_served = False
        self._settings = settings
        self._on_bound, self._on_idle = on_bound, on_idle
        self._binding = Binding(settings, packages, session, self.id, gpus)
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_leaving(self) -> bool:
        return self._given_up.done() or self.state in (wire.EXECUTOR_UNBINDING, wire.EXECUTOR_RELEASING)

    def give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    def to_wire(self) -> Any:
        return executor_message(self.id, self._settings.node, self.resources, self.state, self.session.id)

    async def run(self) -> None:
        try:
            if await self._bind_unless_given_up():
                self.session.bind_failures = 0
                self.state = wire.EXECUTOR_BOUND
                self._on_bound()
                await self._serve()
                await self._pause_after_crash()
        except BindError as error:
            await self._report(error)
        finally:
            await self._release()

    async def _report(self, error: BindError) -> None:
        log_tail = self._binding.process.log_tail()
        text = bind_failure_text(self.id, self._settings.node, error) + log_tail
        _log.warning("%s", text)
        if self.session.is_open:
            self.session.bind_failed(text)
            await asyncio.wait([self._given_up], timeout=_BIND_BACKOFF_S * 2**self.session.bind_failures)

    async def _pause_after_crash(self) -> None:
        """Of a process that ended before its first call; its session's minimum would be restarted without a rest."""
        if self._binding.process.is_alive or self._has_served:
            return
        self.state = wire.EXECUTOR_RELEASING
        self.session.crashes += 1
        pause_s = min(_BIND_BACKOFF_S * 2**self.session.crashes, _MAX_BACKOFF_S)
        _log.warning("executor %s: its process %s without a call", self.id, self._binding.process.exit_text())
        await asyncio.wait([self._given_up], timeout=pause_s)

    # -- binding ---------------------------------------------------------------------------------------------------

    async def _bind_unless_given_up(self) -> bool:
        bind = asyncio.ensure_future(self._bind())
        try:
            await asyncio.wait([bind, self._given_up], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not bind.done():
                bind.cancel()
                await asyncio.wait([bind])
        if bind.cancelled():
            return False
        bind.result()
        return True

    async def _bind(self) -> None:
        try:
            await self._binding.launch()
            await self._binding.await_socket()
            self._binding.connect()
            await self._binding.enter(self._settings.enter_deadline_s)
        except (grpc.RpcError, GoneError) as error:
            text = f"entering the session failed: {self._binding.failure_text(error)}"
            raise BindError(RC_ENTER, text) from error
        except BindError:
            raise
        except Exception as error:  # it must count as a failure, or the next executor would follow at once, for ever
            raise BindError(RC_UNKNOWN, f"{type(error).__name__}: {error}") from error

    # -- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while self._binding.process.is_alive and not self._given_up.done():
            task = await self._next_task(self.session.application.spec.delay_release)
            if task is None:
                return
            if task.state == wire.TASK_PENDING:  # a close may have cancelled it meanwhile
                await self._invoke(task)

    async def _next_task(self, delay_release_s: float) -> TaskRecord | None:
        """None: idle for too long, given up, session closed, or process gone."""
        process = self._binding.process
        taker = self.session.take()
        if not taker.done():
            self.is_idle = True
            self._on_idle()
        try:
            waiting: list[asyncio.Future[Any]] = [taker, process.exited, self._given_up]
            await asyncio.wait(waiting, timeout=delay_release_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.session.give_back(taker)
            raise
        finally:
            self.is_idle = False
        if taker.done() and process.is_alive:
            return taker.result()
        self.session.give_back(taker)
        return None

    async def _invoke(self, task: TaskRecord) -> None:
        process = self._binding.process
        self._has_served = True
        self.session.crashes = 0
        self.session.move(task, wire.TASK_RUNNING)
        try:
            await self._binding.invoke(task)
        except (grpc.RpcError, GoneError) as error:
            text = f"transport error: executor <{self.id}>: {self._binding.failure_text(error)}{process.log_tail()}"
            _log.warning("call %s/%d: %s", self.session.id, task.id, text)
            self.session.move(task, wire.TASK_FAILED, message=text)
            if process.is_alive and _is_unavailable(error):
                process.signal(signal.SIGKILL)  # alive but deaf: of no use any more
        except asyncio.CancelledError:
            self.session.move(task, wire.TASK_FAILED, message="the cluster was stopped")
            raise

    # -- ending ----------------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        if self.state == wire.EXECUTOR_BOUND and self._binding.process.is_alive:
            self.state = wire.EXECUTOR_UNBINDING
            await self._binding.leave()
        self.state = wire.EXECUTOR_RELEASING
        await self._binding.end()


def executor_message(executor: str, node: str, resources: Resources, state: int, session: str | None) -> Any:
    resreq = wire.types.ResourceRequirement(cpu=resources.cpu, memory=resources.memory_bytes, gpu=resources.gpu)
    return wire.types.Executor(
        metadata=wire.types.Metadata(id=executor, name=executor),
        spec=wire.types.ExecutorSpec(node=node, resreq=resreq, shim=0),
        status=wire.types.ExecutorStatus(state=state, session_id=session),
    )


def bind_failure_text(executor: str, node: str, error: BindError) -> str:
    return (
        f"Executor <{executor}> on node <{node}> failed to bind session with return_code <{error.return_code}>: {error}"
    )


def _is_unavailable(error: BaseException) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.UNAVAILABLE
