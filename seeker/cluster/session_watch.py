"""Looks at a session while calls are outstanding: what happens to it never reaches a call by itself."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Awaitable, Callable
from typing import Any

from seeker.cluster import wire
from seeker.cluster.bind_watch import BindWatch
from seeker.cluster.calls import LostError
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.cluster.resources import resources_of
from seeker.cluster.session import SessionPlan
from seeker.cluster.sightings import Sightings
from seeker.errors import ClusterError, ObjectMissingError

_log = logging.getLogger("seeker.cluster")

LOOK_S = 0.5
EXECUTORS_EVERY = 4  # looks
REQUEST_DEADLINE_S = 5.0
VERDICT_S = 1.5  # a dead executor that is still bound after this stays so
MAX_STRANGERS = 32  # parked calls of one session that are sent again without that any call is answered
PARKED_NAME = "parked"


class SessionWatch:
    """Used on the shared loop. `tell` gets the id of a try (None: all of them) and what has happened to it."""

    def __init__(
        self,
        plan: SessionPlan,
        frontend: FrontendClient,
        objects: FlightObjects,
        tell: Callable[[str | None, ClusterError], None],
    ) -> None:
        self.sightings = Sightings(plan.id)
        self.parked: dict[str, str] = {}  # executor -> why it holds a call
        self._plan = plan
        self._frontend = frontend
        self._objects = objects
        self._tell = tell
        self._bind_watch = BindWatch()
        self._parked_version = 1
        self._num_parked = 0
        self._wanted = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._has_ended = False
        self._verdict: asyncio.Task[bool] | None = None

    def begin(self) -> None:
        self._wanted.set()
        if self._looking is None and not self._has_ended:
            self._looking = shared_loop().task(self._look())

    def rest(self) -> None:
        self._wanted.clear()

    def end(self) -> None:
        """For good: the calls of a session's own end need no watch."""
        self._has_ended = True
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        number = 0
        while True:
            await self._wanted.wait()
            await asyncio.sleep(LOOK_S)
            if not self._wanted.is_set():
                continue
            looks: list[Callable[[], Awaitable[object]]] = [self._look_at_session, self._look_at_parked]
            if number % EXECUTORS_EVERY == 0:
                looks.append(self.look_at_executors)
            number += 1
            for look in looks:
                try:
                    await look()
                except ClusterError as error:
                    _log.info("session %s: cannot look at it: %s", self._plan.id, error)

    async def _look_at_session(self) -> None:
        text = self._bind_watch.observe((await self._session()).status, time.monotonic())
        if text is not None:
            self._tell(None, ClusterError(f"session {self._plan.id}: no executor could be started: {text}"))

    async def _session(self) -> Any:
        request = wire.frontend.GetSessionRequest(session_id=self._plan.id)
        return await self._frontend.ask("GetSession", request, REQUEST_DEADLINE_S)

    async def _look_at_parked(self) -> None:
        handle = ObjectHandle(f"{self._plan.prefix}/{PARKED_NAME}", 0, self._objects.endpoint)
        try:
            parts = await shared_loop().blocking(self._objects.read, handle, self._parked_version)
        except ObjectMissingError:
            return
        for version, data in parts.patches:
            if version > self._parked_version:
                self._parked_version = version
                self._note_parked(pickle.loads(data))

    def _note_parked(self, note: dict[str, str]) -> None:
        why = f"{note['reason']}: {note.get('detail', '')}".rstrip(": ")
        self.parked[note["executor"]] = why
        self._num_parked += 1
        unfit = [each for each in self.parked.values() if each.startswith("unfit")]
        if len(unfit) >= self._plan.max_executors or self._num_parked > MAX_STRANGERS:
            text = f"session {self._plan.id}: no executor may do its calls: {'; '.join(self.parked.values())}"
            self._tell(None, ClusterError(text))
        self._tell(note["call"], ClusterError(f"executor {note['executor']} holds the call: {why}"))

    def answered(self) -> None:
        """A call was answered: strangers, which every generation of a gang may meet anew, do not keep all from work."""
        self._num_parked = 0

    async def look_at_executors(self) -> dict[str, int]:
        """States of the session's executors by id."""
        request = wire.frontend.ListExecutorRequest()
        listed = (await self._frontend.ask("ListExecutor", request, REQUEST_DEADLINE_S)).executors
        self.sightings.observe(listed, time.monotonic())
        return {each.metadata.id: each.status.state for each in listed if each.status.session_id == self._plan.id}

    async def state_text(self) -> str:
        """What the session and the cluster look like, for the text of a deadline error."""
        try:
            status = (await self._session()).status
            await self.look_at_executors()
            request = wire.frontend.ListNodesRequest()
            nodes = (await self._frontend.ask("ListNodes", request, REQUEST_DEADLINE_S)).nodes
        except ClusterError as error:
            return f"and the cluster does not answer: {error}"
        free = "; ".join(str(resources_of(node.status.allocatable)) for node in nodes)
        parts = [
            f"session {self._plan.id}: {status.pending} calls pending, {status.running} running",
            f"{self.sightings.text(time.monotonic())} of {self._plan.executors} x {self._plan.resources}, free: {free}",
        ]
        parts += [f"executor {executor} parked, {why}" for executor, why in self.parked.items()]
        parts += [event.message for event in status.events[-1:]]
        return "; ".join(parts)

    # -- a dead executor: replaced, or still there and failing calls? -----------------------------------------------

    async def is_poisoned(self, lost: LostError) -> bool:
        """True when the dead executor stays with the session, which then must not be used nor closed any more."""
        if self._verdict is None or (self._verdict.done() and not _found(self._verdict)):
            self._verdict = shared_loop().task(self._examine(lost.executor))
        return await asyncio.shield(self._verdict)

    async def _examine(self, dead: str) -> bool:
        before: set[str] = {dead} if dead else self.sightings.bound()
        end = time.monotonic() + VERDICT_S
        while time.monotonic() < end:
            states = await self.look_at_executors()
            before = before or self.sightings.bound()
            if not before or any(states.get(executor) != wire.EXECUTOR_BOUND for executor in before):
                return False
            await asyncio.sleep(0.1)
        return True


def _found(verdict: asyncio.Task[bool]) -> bool:
    return not verdict.cancelled() and verdict.exception() is None and verdict.result()
