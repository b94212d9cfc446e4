"""The Frontend service of the wire protocol, over `state.py` and the scheduler."""

from __future__ import annotations

import platform
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local.records import StateError
from seeker.cluster.local.scheduler import AnyScheduler
from seeker.cluster.local.state import State

_QUICK_CALL_S = 0.003  # a call that is over within it is told once, as finished

# Every method below has the name that the protocol gives it.


async def _refuse(context: Any, error: StateError) -> None:
    await context.abort(getattr(grpc.StatusCode, error.status), str(error))


class Frontend(wire.frontend_grpc.FrontendServicer):
    """One handler per method; all run on the server's event loop, so none of them needs a lock."""

    def __init__(self, state: State, scheduler: AnyScheduler, events_on_streams: bool = True) -> None:
        self._state = state
        self._scheduler = scheduler
        self._events_on_streams = events_on_streams

    async def _answer(self, context: Any, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except StateError as error:
            return await _refuse(context, error)

    async def _result(self, context: Any, work: Callable[[], None]) -> Any:
        """Failures of (un)registering are an OK reply with return code -1; bad arguments are a status."""
        try:
            work()
        except StateError as error:
            if error.status == "INVALID_ARGUMENT":
                await _refuse(context, error)
            return wire.types.Result(return_code=-1, message=str(error))
        return wire.types.Result(return_code=0)

    async def RegisterApplication(self, request: Any, context: Any) -> Any:
        return await self._result(context, lambda: self._state.register(request.name, request.application))

    async def UpdateApplication(self, request: Any, context: Any) -> Any:
        work: Callable[[], None] = lambda: self._state.register(request.name, request.application, update=True)  # noqa: E731
        return await self._result(context, work)

    async def UnregisterApplication(self, request: Any, context: Any) -> Any:
        return await self._result(context, lambda: self._state.unregister(request.name))

    async def GetApplication(self, request: Any, context: Any) -> Any:
        return await self._answer(context, lambda: self._state.application(request.name).to_wire())

    async def ListApplication(self, request: Any, context: Any) -> Any:
        applications = [application.to_wire() for application in self._state.applications.values()]
        return wire.types.ApplicationList(applications=applications)

    async def ListExecutor(self, request: Any, context: Any) -> Any:
        return wire.types.ExecutorList(executors=[executor.to_wire() for executor in self._scheduler.executors])

    async def ListNodes(self, request: Any, context: Any) -> Any:
        return wire.types.NodeList(nodes=[self._node()])

    async def GetNode(self, request: Any, context: Any) -> Any:
        if request.name != self._scheduler.node:
            return await _refuse(context, StateError("NOT_FOUND", f"node <{request.name}> not found"))
        return wire.frontend.GetNodeResponse(node=self._node())

    def _node(self) -> Any:
        capacity, free = self._scheduler.capacity, self._scheduler.free()
        status = wire.types.NodeStatus(
            state=wire.NODE_READY,
            capacity=wire.types.ResourceRequirement(cpu=capacity.cpu, memory=capacity.memory_bytes, gpu=capacity.gpu),
            allocatable=wire.types.ResourceRequirement(cpu=free.cpu, memory=free.memory_bytes, gpu=free.gpu),
            info=wire.types.NodeInfo(arch=platform.machine(), os=platform.system().lower()),
            last_heartbeat_time=int(time.time()),
        )
        name = self._scheduler.node
        metadata = wire.types.Metadata(id=name, name=name)
        return wire.types.Node(metadata=metadata, spec=wire.types.NodeSpec(hostname=name), status=status)

    async def CreateSession(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            session = self._state.create_session(request.session_id, request.session)
            self._scheduler.kick()
            return session.to_wire()

        return await self._answer(context, work)

    async def OpenSession(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            spec = request.session if request.HasField("session") else None
            session, _ = self._state.open_session(request.session_id, spec)
            self._scheduler.kick()
            return session.to_wire()

        return await self._answer(context, work)

    async def CloseSession(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            session = self._state.close_session(request.session_id)
            self._scheduler.kick()
            return session.to_wire()

        return await self._answer(context, work)

    async def DeleteSession(self, request: Any, context: Any) -> Any:
        return await self._answer(context, lambda: self._state.delete_session(request.session_id).to_wire())

    async def GetSession(self, request: Any, context: Any) -> Any:
        return await self._answer(context, lambda: self._state.session(request.session_id).to_wire())

    async def ListSession(self, request: Any, context: Any) -> Any:
        return wire.types.SessionList(sessions=[session.to_wire() for session in self._state.sessions.values()])

    async def CreateTask(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            data = request.task.input if request.task.HasField("input") else None
            session = self._state.session(request.task.session_id)
            reply = session.submit(data).to_wire()
            if session.pending:  # else a waiting executor has it
                self._scheduler.kick()
            return reply

        return await self._answer(context, work)

    async def GetTask(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            task = self._state.task(request.session_id, request.task_id)
            self._state.session(request.session_id).told(task)
            return task.to_wire()

        return await self._answer(context, work)

    async def WatchTask(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """A message per change of state from now on, or the terminal state at once; ends after a terminal state."""
        try:
            task = self._state.task(request.session_id, request.task_id)
            session = self._state.session(request.session_id)
        except StateError as error:
            await _refuse(context, error)
            return
        seen = None if task.state in wire.TASK_TERMINAL else task.state
        while True:
            if task.state == wire.TASK_RUNNING and seen != task.state:
                await task.changed(_QUICK_CALL_S)
            while task.state != seen:  # again after each message: it may have moved while that was sent
                seen = task.state
                yield task.to_wire(with_events=self._events_on_streams)
            if seen in wire.TASK_TERMINAL:
                session.told(task)
                return
            if self._state.sessions.get(session.id) is not session:
                return
            await task.changed()

    async def ListTask(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            session = self._state.session(request.session_id)
        except StateError as error:
            await _refuse(context, error)
            return
        for task in list(session.tasks.values()):
            yield task.to_wire(with_events=self._events_on_streams)
