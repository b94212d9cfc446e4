"""An executor with the real engine's faults, for tests: it outlives its process, and mourns it in the wrong way.

It waits for a socket without a deadline and without a look at the process; a dead process fails calls at once and keeps
its executor bound; unbinding from a dead process never ends. Idle, it can be bound to any session, with a new process.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local.binding import RC_ENTER, BindError, Binding, ExecutorSettings
from seeker.cluster.local.executor import bind_failure_text, executor_message
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.process import GoneError
from seeker.cluster.local.records import SessionRecord, TaskRecord
from seeker.cluster.resources import Resources

_POLL_S = 0.01
_FAILING_CALL_S = 0.002  # what a call costs on an executor whose process is dead

_log = logging.getLogger("seeker.cluster.local")


class EngineExecutor:
    """Idle until `bind`; afterwards idle again, unless it is stuck."""

    def __init__(
        self, settings: ExecutorSettings, packages: Packages, made_for: SessionRecord, resources: Resources
    ) -> None:
        self.id = str(uuid.uuid4())
        self.made_for = made_for
        self.resources = resources
        self.state = wire.EXECUTOR_IDLE
        self.idle_since_s = time.monotonic()
        self.session: SessionRecord | None = None
        self._settings = settings
        self._packages = packages
        self._life: asyncio.Task[None] | None = None
        self._binding: Binding | None = None

    def to_wire(self) -> Any:
        session = self.session.id if self.session is not None else None
        return executor_message(self.id, self._settings.node, self.resources, self.state, session)

    def bind(self, session: SessionRecord) -> None:
        self.session, self.state = session, wire.EXECUTOR_BINDING
        self._life = asyncio.get_running_loop().create_task(self._live(session))

    async def end(self) -> None:
        """End of the whole cluster: the one way out of being stuck."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        if self._binding is not None:
            await self._binding.end()

    async def _live(self, session: SessionRecord) -> None:
        binding = self._binding = Binding(self._settings, self._packages, session, self.id)
        try:
            await self._bind(binding)
            self.state = wire.EXECUTOR_BOUND
            session.bind_failures = 0
            await self._serve(binding)
        except BindError as error:
            session.bind_failed(bind_failure_text(self.id, self._settings.node, error))
        self.state = wire.EXECUTOR_UNBINDING
        await self._unbind(binding)
        self._binding, self.session = None, None
        self.state, self.idle_since_s = wire.EXECUTOR_IDLE, time.monotonic()

    async def _unbind(self, binding: Binding) -> None:
        if binding.process.is_alive:
            await binding.leave()
        elif binding.process.was_started:
            _log.error("executor %s is stuck in Unbinding, as the engine's are: its process is gone", self.id)
            await asyncio.get_running_loop().create_future()
        await binding.end()

    async def _bind(self, binding: Binding) -> None:
        await binding.launch()
        while not binding.process.accepts():
            await asyncio.sleep(_POLL_S)
        binding.connect()
        try:
            await binding.enter(deadline_s=None)
        except (grpc.RpcError, GoneError) as error:
            raise BindError(RC_ENTER, "transport error") from error

    async def _serve(self, binding: Binding) -> None:
        session = binding.session
        while (task := await self._next_task(session)) is not None:
            session.move(task, wire.TASK_RUNNING)
            try:
                await binding.invoke(task)
            except (grpc.RpcError, GoneError):
                session.move(task, wire.TASK_FAILED, message="transport error")
                await asyncio.sleep(_FAILING_CALL_S)
            except asyncio.CancelledError:
                session.move(task, wire.TASK_FAILED, message="the cluster was stopped")
                raise

    async def _next_task(self, session: SessionRecord) -> TaskRecord | None:
        while True:
            taker = session.take()
            await asyncio.wait([taker], timeout=session.application.spec.delay_release)
            if not taker.done():
                session.give_back(taker)
                return None
            task = taker.result()
            if task is None or task.state == wire.TASK_PENDING:  # a close may have cancelled it meanwhile
                return task
