"""Which session gets which executors, on one node, never more than its capacity.

A pass runs after every change. It makes executors for open sessions, higher priority first, one batch at a time in
turn, and all or nothing for batches and for `min_instances`. An executor serves the session that it was made for.
Beyond the minimum, executors start one per core at a time: started all at once they would only delay each other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from seeker.cluster import wire
from seeker.cluster.local.records import SessionRecord
from seeker.cluster.local.state import State
from seeker.cluster.resources import Resources, resources_of

_GROWTH_PAUSE_S = 0.2

_log = logging.getLogger("seeker.cluster.local")


class ScheduledExecutor(Protocol):
    """What the scheduler needs to know of an executor."""

    session: SessionRecord
    resources: Resources
    gpus: tuple[int, ...]
    state: int

    async def run(self) -> None: ...
    def to_wire(self) -> Any: ...


class MakeExecutor(Protocol):
    """`on_bound` is called when the executor is ready for calls."""

    def __call__(
        self, session: SessionRecord, resources: Resources, gpus: tuple[int, ...], on_bound: Callable[[], None]
    ) -> ScheduledExecutor: ...


class Scheduler:
    """Owns the executors. `kick` asks for a pass; `stop` ends them all."""

    def __init__(self, state: State, capacity: Resources, make_executor: MakeExecutor) -> None:
        self.node = socket.gethostname()
        self.capacity = capacity
        self.executors: list[ScheduledExecutor] = []
        self._state = state
        self._make_executor = make_executor
        self._runs: set[asyncio.Task[None]] = set()
        self._max_starting = os.cpu_count() or 1
        self._kicked = False
        self._stopping = False
        self._reported: set[str] = set()

    def free(self) -> Resources:
        used = [executor.resources for executor in self.executors]
        return Resources(
            self.capacity.cpu - sum(each.cpu for each in used),
            self.capacity.memory_bytes - sum(each.memory_bytes for each in used),
            self.capacity.gpu - sum(each.gpu for each in used),
        )

    def kick(self) -> None:
        if not self._kicked and not self._stopping:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._pass)

    async def stop(self) -> None:
        """End every executor: cancelled runs release their processes."""
        self._stopping = True
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    def _pass(self) -> None:
        self._kicked = False
        if self._stopping:
            return
        sessions = [each for each in self._state.sessions.values() if each.is_open and not each.given_up]
        for priority in sorted({each.spec.priority for each in sessions}, reverse=True):
            turn = [each for each in sessions if each.spec.priority == priority]
            while turn:  # one batch each in turn: sessions of equal priority share the node fairly
                turn = [session for session in turn if self._make_batch(session)]

    def _make_batch(self, session: SessionRecord) -> bool:
        """Make the session's next batch; False when it needs none or has no room."""
        num_held = sum(executor.session is session for executor in self.executors)
        num_new = next_batch(session, num_held)
        each = resources_of(session.spec.resreq)
        if num_new == 0:
            self._reported.discard(session.id)
            return False
        num_starting = self._num_starting()
        is_growth = num_held >= session.spec.min_instances
        if is_growth and num_starting and num_starting + num_new > self._max_starting:
            return False
        if not _fits(self.free(), each, num_new):
            if session.id not in self._reported:
                self._reported.add(session.id)
                _log.warning("session %s waits for room: %d x %s, free %s", session.id, num_new, each, self.free())
            return False
        for _ in range(num_new):
            self._start(session, each)
        return True

    def _bound(self) -> None:
        """Ask for a pass, a moment later: what it can do itself at once needs no further executor."""
        asyncio.get_running_loop().call_later(_GROWTH_PAUSE_S, self.kick)

    def _num_starting(self) -> int:
        return sum(executor.state == wire.EXECUTOR_BINDING for executor in self.executors)

    def _start(self, session: SessionRecord, resources: Resources) -> None:
        taken = {gpu for executor in self.executors for gpu in executor.gpus}
        gpus = tuple(gpu for gpu in range(self.capacity.gpu) if gpu not in taken)[: resources.gpu]
        executor = self._make_executor(session, resources, gpus, self._bound)
        self.executors.append(executor)
        run = asyncio.get_running_loop().create_task(self._run(executor))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _run(self, executor: ScheduledExecutor) -> None:
        try:
            await executor.run()
        finally:
            self.executors.remove(executor)
            self.kick()


def next_batch(session: SessionRecord, num_held: int) -> int:
    """How many executors to make next, all or nothing. Pure.

    Demand is one executor per pending or running call in whole batches, between the session's minimum and maximum.
    Example: min 2, batch 1, nothing held, 5 calls: first 2 (the minimum together), then 1 at a time.
    """
    spec = session.spec
    num_calls = session.counts[wire.TASK_PENDING] + session.counts[wire.TASK_RUNNING]
    demand = num_calls // spec.batch_size * spec.batch_size
    maximum = session.application.spec.max_instances
    if spec.HasField("max_instances") and spec.max_instances:
        maximum = min(maximum, spec.max_instances)
    demand = min(max(demand, spec.min_instances), maximum)
    if num_held >= demand:
        return 0
    if num_held < spec.min_instances:
        return spec.min_instances - num_held
    return spec.batch_size - num_held % spec.batch_size


def _fits(free: Resources, each: Resources, count: int) -> bool:
    return (
        each.cpu * count <= free.cpu and each.memory_bytes * count <= free.memory_bytes and each.gpu * count <= free.gpu
    )
