"""The scheduler with the real engine's faults (`faults="engine"`), so that clients can be tested against them.

Of ``flame-0.6``'s observations: a dead process fails its executor's calls and, once its session is closed, leaves it in
Unbinding, after which no session gets an executor; a hanging constructor and a command that ends before its socket is
open hold their slots for ever; idle executors go to anyone, one pending call takes a session to its maximum. For tests
and drills only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from seeker.cluster import wire
from seeker.cluster.local.binding import ExecutorSettings
from seeker.cluster.local.executor import Executor
from seeker.cluster.local.faults_executor import EngineExecutor
from seeker.cluster.local.faults_plan import allocate, dispatch
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.plan import Standing
from seeker.cluster.local.records import SessionRecord
from seeker.cluster.local.scheduler import AnyScheduler, Scheduler, charged, remaining, standing_of
from seeker.cluster.local.state import State
from seeker.cluster.resources import Resources

CYCLE_S = 0.1
IDLE_S = 2.0  # how long an executor without a session is kept for the next one

_log = logging.getLogger("seeker.cluster.local")


def make_scheduler(
    faults: Literal["none", "engine"], state: State, capacity: Resources, settings: ExecutorSettings, packages: Packages
) -> AnyScheduler:
    if faults == "engine":
        return EngineScheduler(state, capacity, partial(EngineExecutor, settings, packages))
    return Scheduler(state, capacity, partial(Executor, settings, packages))


class EngineScheduler:
    """A cycle every 100 ms from the first `kick` on: bind idle executors, make new ones, drop those idle for long."""

    def __init__(
        self, state: State, capacity: Resources, make_executor: Callable[[SessionRecord, Resources], EngineExecutor]
    ) -> None:
        self.node = socket.gethostname()
        self.capacity = capacity
        self.executors: list[EngineExecutor] = []
        self._state = state
        self._make_executor = make_executor
        self._cycles: asyncio.Task[None] | None = None

    def free(self) -> Resources:
        return remaining(self.capacity, [executor.resources for executor in self.executors])

    def kick(self) -> None:
        if self._cycles is None:
            self._cycles = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._cycles is not None:
            self._cycles.cancel()
            await asyncio.wait([self._cycles])
        await asyncio.gather(*(executor.end() for executor in self.executors))

    def waiting(self) -> dict[str, str]:
        stuck = "; an executor stuck in Unbinding keeps all sessions from getting one" if self._is_stuck() else ""
        return {
            each.id: f"{each.pending} calls pending, no executor{stuck}"
            for each in self._standings()
            if each.pending and not each.held
        }

    async def _run(self) -> None:
        while True:
            try:
                self._cycle()
            except Exception:
                _log.exception("a cycle of the scheduler failed")
            await asyncio.sleep(CYCLE_S)

    def _cycle(self) -> None:
        if self._is_stuck():
            return
        idle = [executor for executor in self.executors if executor.state == wire.EXECUTOR_IDLE]
        for session_id, count in dispatch(self._standings(), len(idle)):
            for executor in idle[:count]:
                executor.bind(self._state.open_sessions[session_id])
            del idle[:count]
        for session_id, count in allocate(self._standings(), self.free()):
            session = self._state.open_sessions[session_id]
            self.executors += [self._make_executor(session, charged(session)) for _ in range(count)]
        self._drop_idle()

    def _is_stuck(self) -> bool:
        """It waits for an executor in Unbinding to become idle instead of making another."""
        return any(executor.state == wire.EXECUTOR_UNBINDING for executor in self.executors)

    def _standings(self) -> list[Standing]:
        idle = [executor for executor in self.executors if executor.state == wire.EXECUTOR_IDLE]
        return [
            replace(
                standing_of(session),
                held=sum(executor.session is session for executor in self.executors),
                idle=sum(executor.made_for is session for executor in idle),
            )
            for session in self._state.open_sessions.values()
            if not session.given_up
        ]

    def _drop_idle(self) -> None:
        now = time.monotonic()
        self.executors = [
            executor
            for executor in self.executors
            if executor.state != wire.EXECUTOR_IDLE or now - executor.idle_since_s < IDLE_S
        ]
