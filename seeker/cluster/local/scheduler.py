"""Gives sessions their executors, on one node, never more than its capacity. The decisions are in `plan.py`.

A pass runs after every change. An executor serves the session that it was made for. It is released exactly after its
application's `delay_release` without a call, also within the session's minimum, for which a cold one is then made.
Beyond the minimum, executors start one per core at a time: started all at once they would only delay each other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from seeker.cluster import wire
from seeker.cluster.local.plan import Plan, Room, Standing, make_plan, why_stuck
from seeker.cluster.local.records import SessionRecord
from seeker.cluster.local.state import State
from seeker.cluster.resources import Resources, resources_of

_GROWTH_PAUSE_S = 0.2
_RECHECK_S = 0.5
_SLOW_START_S = 1.0  # one that takes longer to start no longer keeps others from starting
_QUIET_WAIT_S = 1.0  # a wait that long is worth a line in the log

_log = logging.getLogger("seeker.cluster.local")


class ScheduledExecutor(Protocol):
    """What the scheduler needs to know of an executor."""

    session: SessionRecord
    resources: Resources
    gpus: tuple[int, ...]
    state: int
    born_s: float  # of the monotonic clock
    is_idle: bool  # ready, without a call

    @property
    def is_leaving(self) -> bool: ...
    def give_up(self) -> None: ...
    async def run(self) -> None: ...
    def to_wire(self) -> Any: ...


class MakeExecutor(Protocol):
    """`on_bound` is called when the executor is ready for calls, `on_idle` whenever there is none for it."""

    def __call__(
        self,
        session: SessionRecord,
        resources: Resources,
        gpus: tuple[int, ...],
        on_bound: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> ScheduledExecutor: ...


class AnyScheduler(Protocol):
    """What the frontend needs of a scheduler."""

    node: str
    capacity: Resources

    @property
    def executors(self) -> Sequence[Any]: ...
    def free(self) -> Resources: ...
    def kick(self) -> None: ...
    def waiting(self) -> dict[str, str]: ...
    async def stop(self) -> None: ...


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
        self._rechecks = False
        self._stopping = False
        self._freed_s = time.monotonic()
        self._waits: dict[str, str] = {}
        self._waiting_since_s: dict[str, float] = {}
        self._logged: set[str] = set()

    def free(self) -> Resources:
        return remaining(self.capacity, [executor.resources for executor in self.executors])

    def waiting(self) -> dict[str, str]:
        """Why sessions with pending calls, or without their minimum, have no executor for them: id -> reason."""
        reasons = dict(self._waits)
        for standing in self._standings():
            reason = why_stuck(standing)
            if reason is not None:
                reasons[standing.id] = reason
        for session in self._state.open_sessions.values():
            if session.given_up and session.counts[wire.TASK_PENDING]:
                reasons[session.id] = f"given up after {session.bind_failures} bind failures; see its events"
        return reasons

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

    # -- a pass ----------------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        self._kicked = False
        if self._stopping:
            return
        for executor in self.executors:
            if not executor.session.is_open:
                executor.give_up()
        plan = make_plan(self._standings(), self._room())
        for session_id, count in plan.starts:
            for _ in range(count):
                self._start(self._state.open_sessions[session_id])
        self._note_waits(plan)
        for session_id, count in plan.claims.items():
            self._claim(session_id, count)

    def _standings(self) -> list[Standing]:
        now = time.monotonic()
        held = Counter(each.session for each in self.executors)
        leaving = Counter(each.session for each in self.executors if each.is_leaving)
        idle = Counter(each.session for each in self.executors if each.is_idle and not each.is_leaving)
        return [
            replace(
                standing_of(session),
                held=held[session],
                idle=idle[session],
                leaving=leaving[session],
                waited_s=now - self._waiting_since_s.get(session.id, now),
            )
            for session in self._state.open_sessions.values()
            if not session.given_up
        ]

    def _room(self) -> Room:
        now = time.monotonic()
        return Room(
            capacity=self.capacity,
            free=self.free(),
            coming=sum_of([executor.resources for executor in self.executors if executor.is_leaving]),
            quiet_s=now - self._freed_s,
            starting=sum(
                executor.state == wire.EXECUTOR_BINDING and now - executor.born_s < _SLOW_START_S
                for executor in self.executors
            ),
            max_starting=self._max_starting,
        )

    def _note_waits(self, plan: Plan) -> None:
        now = time.monotonic()
        self._waits = plan.waits
        self._waiting_since_s = {key: self._waiting_since_s.get(key, now) for key in plan.waits}
        self._logged &= plan.waits.keys()
        for session_id, reason in plan.waits.items():
            if session_id not in self._logged and now - self._waiting_since_s[session_id] >= _QUIET_WAIT_S:
                self._logged.add(session_id)
                _log.warning("session %s: %s", session_id, reason)
        if plan.waits and not self._rechecks:
            self._rechecks = True
            asyncio.get_running_loop().call_later(_RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._rechecks = False
        self.kick()

    def _claim(self, session_id: str, count: int) -> None:
        """Ask executors of the session to go: those without a call at once, others after their call."""
        ready = [
            executor
            for executor in self.executors
            if executor.session.id == session_id and executor.state == wire.EXECUTOR_BOUND and not executor.is_leaving
        ]
        for executor in sorted(ready, key=lambda each: not each.is_idle)[:count]:
            _log.info("an executor of session %s is given up for sessions that wait for room", session_id)
            executor.give_up()

    # -- executors -------------------------------------------------------------------------------------------------

    def _start(self, session: SessionRecord) -> None:
        each = charged(session)
        taken = {gpu for executor in self.executors for gpu in executor.gpus}
        gpus = tuple(gpu for gpu in range(self.capacity.gpu) if gpu not in taken)[: each.gpu]
        executor = self._make_executor(session, each, gpus, self._bound, self._idle)
        self.executors.append(executor)
        loop = asyncio.get_running_loop()
        run = loop.create_task(self._run(executor))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        loop.call_later(_SLOW_START_S, self.kick)

    async def _run(self, executor: ScheduledExecutor) -> None:
        try:
            await executor.run()
        except Exception:
            _log.exception("an executor of session %s failed", executor.session.id)
        finally:
            self.executors.remove(executor)
            self._freed_s = time.monotonic()
            self.kick()

    def _bound(self) -> None:
        """Ask for a pass, a moment later: what it can do itself at once needs no further executor."""
        asyncio.get_running_loop().call_later(_GROWTH_PAUSE_S, self.kick)

    def _idle(self) -> None:
        if self._waits:
            self.kick()


def standing_of(session: SessionRecord) -> Standing:
    """What a session asks for; what it has is the scheduler's to add."""
    spec = session.spec
    maximum = session.application.spec.max_instances
    if spec.HasField("max_instances") and spec.max_instances:
        maximum = min(maximum, spec.max_instances)
    pending = session.counts[wire.TASK_PENDING]
    return Standing(
        session.id,
        each=charged(session),
        priority=spec.priority,
        calls=pending + session.counts[wire.TASK_RUNNING],
        pending=pending,
        minimum=spec.min_instances,
        maximum=maximum,
        batch=spec.batch_size,
    )


def charged(session: SessionRecord) -> Resources:
    """What each of its executors takes of the node: at least one core, also where less was asked for."""
    each = resources_of(session.spec.resreq)
    return replace(each, cpu=max(each.cpu, 1))


def remaining(capacity: Resources, used: Sequence[Resources]) -> Resources:
    total = sum_of(used)
    return Resources(capacity.cpu - total.cpu, capacity.memory_bytes - total.memory_bytes, capacity.gpu - total.gpu)


def sum_of(parts: Sequence[Resources]) -> Resources:
    return Resources(
        sum(each.cpu for each in parts), sum(each.memory_bytes for each in parts), sum(each.gpu for each in parts)
    )
