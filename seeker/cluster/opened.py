"""A session that is open at the cluster: tries of calls in it, and its end.

A try ends with the starter's reply, or earlier: cancelled, moved to another session, or too late. Whatever ended it for
the caller, its task is followed to its own end in the background: until then the cancel object has to name it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster import wire
from seeker.cluster.calls import Call, CancelledCallError, LostError, Request
from seeker.cluster.cancelling import Cancellation
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.ending import close_patiently
from seeker.cluster.frontend import REQUEST_DEADLINE_S, FrontendClient, RefusedError
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import FlightObjects
from seeker.cluster.session import SessionPlan, pickle_request, unpickle_reply
from seeker.cluster.session_watch import SessionWatch
from seeker.errors import ClusterError, DeadlineError

_log = logging.getLogger("seeker.cluster")

GRACE_S = 3.0  # after a call's deadline: the starter's own report of it is on its way
WATCH_SLICE_S = 15.0
BROKEN_WATCH_PAUSE_S = 0.2
STATE_DEADLINE_S = 2.0


class MovedError(ClusterError):
    """The try never began, and never will: its session was given up."""


class ParkedError(ClusterError):
    """The call came to an executor that must not do it and holds it now; another takes its place."""


@dataclass(slots=True, eq=False)
class Try:
    """One task of the session, on behalf of a call. `error` ends it for the caller."""

    id: str
    call: Call
    request: Request
    error: asyncio.Future[ClusterError]
    task_id: str = ""  # once it is created
    is_running: bool = False  # as far as the watch has told
    was_waiting: bool = False  # when the session was given up

    def interrupt(self, error: ClusterError) -> None:
        if not self.error.done():
            self.error.set_result(error)

    def began(self) -> None:
        self.is_running = True


@dataclass(slots=True, eq=False)
class OpenSession:
    """Used on the shared loop."""

    plan: SessionPlan
    frontend: FrontendClient
    objects: FlightObjects
    embedded: EmbeddedCluster | None  # its clock is ours, and its end is seen at once
    release_s: float = 120.0  # its executors are released after so long without a call
    given_up: str = ""  # why it takes no more calls
    tries: dict[str, Try] = field(default_factory=dict[str, Try])
    _works: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    is_closing: bool = False
    _mark: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    cancellation: Cancellation = field(init=False)
    watch: SessionWatch = field(init=False)

    def __post_init__(self) -> None:
        self.cancellation = Cancellation(self.objects, self.plan.prefix)
        self.watch = SessionWatch(self.plan, self.frontend, self.objects, self._told)

    async def run(self, call: Call, request: Request, end: float) -> dict[str, Any]:
        """The starter's reply. A call that comes to an executor which must not do it is sent once more."""
        while True:
            try:
                return await self._try(call, request, end)
            except ParkedError as error:
                _log.warning("%s: %s; another is sent in its place", call.label, error)

    async def _try(self, call: Call, request: Request, end: float) -> dict[str, Any]:
        attempt = Try(f"{self._mark}-{next(self._numbers)}", call, request, asyncio.Future())
        self.tries[attempt.id] = attempt
        self.watch.begin()
        work = shared_loop().task(self._follow(attempt, end))
        self._works.add(work)
        work.add_done_callback(lambda _: self._forget(attempt, work))
        ends = (work, attempt.error)
        for late_s in (0.0, GRACE_S):
            left = max(0.0, end + late_s - time.monotonic())
            done, _ = await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done or not await self._has_begun(attempt):
                break
        if work.done() and not work.cancelled():  # `close` ends both at once
            return self._outcome(work, attempt)
        if not attempt.error.done():
            attempt.interrupt(await self._too_late(call))
        error = attempt.error.result()
        if not isinstance(error, ParkedError) and not self.is_closing:
            shared_loop().spawn(self.cancellation.cancel_calls(attempt.id))
        raise error

    def interrupt_all(self, error: ClusterError) -> None:
        for attempt in list(self.tries.values()):
            attempt.interrupt(error)

    def give_up(self, why: str) -> None:
        """Take no more calls; those that wait, and those that may be done again, move on."""
        self.given_up = why
        for attempt in list(self.tries.values()):
            if attempt.request.idempotent:
                attempt.interrupt(MovedError(why))
            attempt.was_waiting = not attempt.is_running

    def _outcome(self, work: asyncio.Task[dict[str, Any]], attempt: Try) -> dict[str, Any]:
        try:
            return work.result()
        except LostError as error:
            if error.transport and attempt.was_waiting:  # a dead executor took it after we knew: it never began
                raise MovedError(str(error)) from error
            raise

    def _forget(self, attempt: Try, work: asyncio.Task[Any]) -> None:
        self._works.discard(work)
        del self.tries[attempt.id]
        self.cancellation.forget_call(attempt.id)
        if not self.tries:
            self.watch.rest()

    async def _has_begun(self, attempt: Try) -> bool:
        """A watch does not always tell; one that waits at its deadline has nothing more to report."""
        if attempt.is_running or not attempt.task_id:
            return attempt.is_running
        try:
            task = await self._get_task(attempt.task_id, STATE_DEADLINE_S)
        except ClusterError as error:
            _log.info("%s: cannot look at it at its deadline: %s", attempt.call.label, error)
            return False
        return task is not None and task.status.state != wire.TASK_PENDING

    def _told(self, try_id: str | None, error: ClusterError) -> None:
        """News from the watch: about one try, or about all."""
        if try_id is None:
            self.interrupt_all(error)
        elif try_id in self.tries:
            self.tries[try_id].interrupt(ParkedError(str(error)))

    async def _too_late(self, call: Call) -> DeadlineError:
        try:
            state = await asyncio.wait_for(self.watch.state_text(), STATE_DEADLINE_S)
        except TimeoutError:
            state = f"session {self.plan.id}, and the cluster does not answer"
        return DeadlineError(f"{call.label} has no result within its deadline of {call.deadline_s:g} s ({state})")

    # -- one task --------------------------------------------------------------------------------------------------

    async def _follow(self, attempt: Try, end: float) -> dict[str, Any]:
        attempt.task_id = (await self._submit(attempt, end)).metadata.id
        while True:
            task = await self._watch(attempt) or await self._get_task(attempt.task_id)
            if task is not None and task.status.state in wire.TASK_TERMINAL:
                break
            await asyncio.sleep(BROKEN_WATCH_PAUSE_S)
        return await self._reply(attempt, task)

    async def _submit(self, attempt: Try, end: float) -> Any:
        while True:
            left = max(0.0, end - time.monotonic())
            task = wire.types.TaskSpec(session_id=self.plan.id, input=pickle_request(self._message(attempt, left)))
            request = wire.frontend.CreateTaskRequest(task=task)
            try:
                return await self.frontend.ask("CreateTask", request, max(0.1, min(left, REQUEST_DEADLINE_S)))
            except RefusedError as error:
                can_be_sent_again = error.unsent or attempt.request.idempotent
                if error.status != "UNAVAILABLE" or not can_be_sent_again or time.monotonic() > end:
                    raise
                self._check_alive()
                await asyncio.sleep(BROKEN_WATCH_PAUSE_S)

    def _message(self, attempt: Try, left: float) -> dict[str, Any]:
        request = attempt.request
        return {
            "method": request.method,
            "arguments": request.arguments,
            "seconds": left,
            "end": time.time() + left if self.embedded is not None else None,
            "call": attempt.id,
            "generation": request.generation,
            "barrier": request.barrier,
        }

    async def _watch(self, attempt: Try) -> Any:
        """Watched in slices, with a look at the task itself after each: a stream that breaks, ends early or falls

        silent (the session manager restarted, a connection lost without a word) costs one slice at most.
        """
        try:
            return await self.frontend.watch(self.plan.id, attempt.task_id, WATCH_SLICE_S, attempt.began)
        except DeadlineError:
            return None
        except RefusedError as error:
            _log.info("%s: its watch broke: %s", attempt.call.label, error)
            return None

    async def _get_task(self, task_id: str, deadline_s: float = 5.0) -> Any:
        """None while the session manager is away; a task that it does not know is lost."""
        request = wire.frontend.GetTaskRequest(task_id=task_id, session_id=self.plan.id)
        try:
            return await self.frontend.ask("GetTask", request, deadline_s)
        except DeadlineError:
            return None
        except RefusedError as error:
            if error.status == "UNAVAILABLE":
                self._check_alive()
                return None
            raise LostError(f"the cluster lost the call: {error}") from error

    def _check_alive(self) -> None:
        if self.embedded is not None and not self.embedded.is_alive():
            raise ClusterError(self.embedded.end_text())

    async def _reply(self, attempt: Try, task: Any) -> dict[str, Any]:
        label = attempt.call.label
        if task.status.state == wire.TASK_SUCCEED:
            self.watch.answered()
            return self._take_reply(attempt.call, task.spec.output)
        if task.status.state == wire.TASK_CANCELLED:
            raise CancelledCallError(f"{label} was cancelled before it started: its session was closed")
        text = await self._failure_text(task)
        if not text or "transport error" in text:
            raise LostError.of_transport(f"{label}: {text or 'failed without a reason'}")
        raise LostError(f"{label}: {text}")

    def _take_reply(self, call: Call, output: bytes) -> dict[str, Any]:
        reply = unpickle_reply(output)
        if not call.done():
            call.executor = reply.get("executor", "")
            call.set_up_count = reply.get("set_up_count", 0)
            call.rank = reply.get("rank", -1)
        return reply

    async def _failure_text(self, task: Any) -> str:
        """The engine keeps the text in events that its watch streams do not carry."""
        if not any(event.code == wire.TASK_FAILED for event in task.status.events):
            task = await self._get_task(task.metadata.id) or task
        texts: list[str] = [event.message for event in task.status.events if event.code == wire.TASK_FAILED]
        return texts[0] if texts else ""

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self, patient: bool, cancel: bool = False) -> None:
        """End what runs, close, delete its objects; a session that must not or cannot be closed is given up.

        `patient=False`: the cluster is ending anyway. `cancel`: also what runs for another driver.
        """
        self.is_closing = True
        self.interrupt_all(CancelledCallError(f"session {self.plan.id} was closed"))
        self.watch.end()
        try:
            if patient:
                await close_patiently(self, cancel or bool(self._works or self.given_up))
        finally:
            self.cancellation.end()
            for work in list(self._works):
                work.cancel()
