"""A gang: all executors of a service as one, formed together and lost together.

A generation is one forming of it. Every call of the gang names its generation, so that an executor that was never in it
(the engine binds strangers) holds the call instead of doing it. The first loss of a member ends the generation: the
other members' processes are killed, so that none sits in a collective until its deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from seeker.cluster.calls import (
    SLACK_S,
    Call,
    CancelledCallError,
    LostError,
    Request,
    gather,
    pickled_arguments,
    value_of,
)
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import ObjectHandle
from seeker.cluster.opened import GRACE_S, OpenSession
from seeker.errors import CallError, ClusterError, DeadlineError, GangLostError, PayloadError

READ_S = 2.0
OTHERS_S = 3.0  # until the other members' ends tell which one was lost
END_S = 5.0  # until the members of a generation have been told that it has ended
MEMBERS_EVERY_S = 1.5  # while a call is under way: whether its members are all there
RAISED_S = 2.0  # after the first rank's own error: whether all ranks raise

Examine = Callable[[OpenSession, LostError], Awaitable[None]]


class Gang:
    """Every method ends with `GangLostError` once a member is lost; then `form` the service again.

    gang = service.form(deadline_s=60)
    losses = gang.run("update", batch, deadline_s=600)  # one value per rank, in the order of the ranks
    """

    def __init__(self, name: str, session: OpenSession, member: dict[str, Any], examine: Examine) -> None:
        self.name = name
        self.generation: str = member["generation"]
        self.world: int = member["world"]
        self.executors: tuple[str, ...] = tuple(member["executors"])  # by rank
        self.hosts: tuple[str, ...] = tuple(member["hosts"])  # by rank
        self.ended: GangLostError | None = None
        self._session = session
        self._examine = examine
        self._calls: list[Call] = []  # of the latest turn
        self._turn = asyncio.Lock()
        self._loss: asyncio.Task[GangLostError] | None = None
        self._examination: asyncio.Task[None] | None = None  # of the session, after a loss
        self._numbers = itertools.count(1)

    def call_all(self, method: str, *args: Any, deadline_s: float, **kwargs: Any) -> list[Call]:
        """One call for every member, exactly once each; they meet at a barrier before the method runs.

        Which of the calls went to which member is known when it is done: `Call.rank`.
        """
        if self.ended is not None:
            raise self.ended
        label = f"{self.name}.{method}@{self.generation}#{next(self._numbers)}"
        arguments = pickled_arguments(label, args, kwargs)
        barrier = f"{self._session.plan.prefix}/barrier-{secrets.token_hex(6)}"
        calls = [Call(f"{label}.{number}", deadline_s, self._cancel) for number in range(self.world)]
        request = Request(method, arguments, generation=self.generation, barrier=barrier)
        shared_loop().spawn(self._run_all(calls, request))
        return calls

    def run(self, method: str, *args: Any, deadline_s: float, **kwargs: Any) -> list[Any]:
        """The values in rank order. The first failure is raised, and ends the generation.

        Only an error of the method that every rank raises leaves the gang as it was.
        """
        calls = self.call_all(method, *args, deadline_s=deadline_s, **kwargs)
        try:
            for call in gather(calls, deadline_s + GRACE_S + SLACK_S):
                if (error := call.error()) is not None:
                    raise self._failure(calls, error)
        except (CallError, PayloadError) as error:
            if not _all_raised(calls):
                self.end(f"a rank failed alone: {error}")
            raise
        except BaseException as error:
            self.end(f"{type(error).__name__}: {error}")
            raise
        return [call.result() for call in sorted(calls, key=lambda call: call.rank)]

    def end(self, reason: str) -> None:
        """End the generation: its members' processes are killed, and so is whatever they run."""
        shared_loop().wait(self.ending(reason))

    async def ending(self, reason: str) -> None:
        """`end`, on the shared loop."""
        await self._end(GangLostError(f"gang {self.name}, generation {self.generation}, was ended: {reason}"))

    def _failure(self, calls: list[Call], error: BaseException) -> BaseException:
        """The error to raise: with an error of the method's own, that of the lowest rank that raised."""
        if not isinstance(error, CallError | PayloadError):
            return error
        end = time.monotonic() + RAISED_S
        while time.monotonic() < end and not all(call.done() for call in calls):
            time.sleep(0.02)
        raised = sorted((call for call in calls if call.done() and call.error()), key=lambda call: call.rank)
        return raised[0].error() or error

    # -- on the shared loop ------------------------------------------------------------------------------------------

    async def _run_all(self, calls: list[Call], request: Request) -> None:
        """One turn at a time: with two under way, a member could wait in one for a member that waits in the other."""
        assert request.barrier is not None
        end = time.monotonic() + calls[0].deadline_s
        try:
            await asyncio.wait_for(self._turn.acquire(), calls[0].deadline_s)
        except TimeoutError:
            error = DeadlineError(
                f"{calls[0].label} did not begin within {calls[0].deadline_s:g} s: another still runs"
            )
            lost = await self._lost(calls[0], request, error)
            return self._settle_all(calls, lost)
        try:
            await self._take_turn(calls, request, end)
        finally:
            self._turn.release()

    async def _take_turn(self, calls: list[Call], request: Request, end: float) -> None:
        assert request.barrier is not None
        if self.ended is not None:
            return self._settle_all(calls, self.ended)
        if self._session.is_closing:
            return self._settle_all(calls, CancelledCallError(f"{calls[0].label}: its service was closed"))
        try:
            await _put(self._session, request.barrier, self.world, end - time.monotonic())
        except ClusterError as error:
            kind = DeadlineError if isinstance(error, DeadlineError) else ClusterError
            return self._settle_all(calls, kind(f"{calls[0].label}: its barrier cannot be made: {error}"))
        self._calls = calls
        guard = shared_loop().task(self._guard(calls[0], request))
        try:
            await asyncio.gather(*(self._run_one(call, request, end) for call in calls))
        finally:
            guard.cancel()
        return await _delete(self._session, request.barrier)

    async def _guard(self, call: Call, request: Request) -> None:
        """A member that dies between two calls fails none: what was meant for it goes to a stranger, or waits."""
        missed: set[str] = set()
        while True:
            await asyncio.sleep(MEMBERS_EVERY_S)
            try:
                there = await self._session.watch.look_at_executors()
            except ClusterError:
                continue  # a cluster that does not answer says nothing about its executors
            missing = set(self.executors) - set(there)
            if gone := sorted(missing & missed):
                await self._lost(call, request, LostError(f"{call.label}: executor {gone[0]} is gone", gone[0]))
                return
            missed = missing

    def _settle_all(self, calls: list[Call], error: BaseException) -> None:
        for call in calls:
            call.settle(error=error)

    async def _run_one(self, call: Call, request: Request, end: float) -> None:
        try:
            call.settle(value=value_of(await self._session.run(call, request, end), call.label))
        except (CallError, PayloadError) as error:
            call.settle(error=error)
        except ClusterError as error:
            call.settle(error=await self._lost(call, request, error))
        except Exception as error:  # a value that cannot be unpickled here
            call.settle(error=error)

    def _cancel(self, call: Call) -> None:
        shared_loop().spawn(self._end(GangLostError(f"gang {self.name}: {call.label} was cancelled by its caller")))

    async def _lost(self, call: Call, request: Request, error: ClusterError) -> ClusterError:
        """The same error for all calls of the generation: that of the first loss."""
        if self.ended is not None:
            return self.ended
        if self._session.is_closing:
            return error
        if self._loss is None:
            self._loss = shared_loop().task(self._find_loss(call, request, error))
        return await asyncio.shield(self._loss)

    async def _find_loss(self, call: Call, request: Request, error: ClusterError) -> GangLostError:
        shared_loop().task(self._session.cancellation.end_generation(self.generation))  # while we look who it was
        executor = await self._absent(request) if isinstance(error, DeadlineError) else getattr(error, "executor", "")
        executor = executor or call.executor or await self._missing()
        rank = self.executors.index(executor) if executor in self.executors else -1
        who = f"rank {rank} (executor {executor}, host {self.hosts[rank]})" if rank >= 0 else "a member"
        lost = GangLostError(
            f"gang {self.name}, generation {self.generation}: {who} was lost: {error}", rank, executor if who else ""
        )
        shared_loop().task(self._end(lost))
        await asyncio.sleep(0)  # it is `ended` from here on
        if isinstance(error, LostError):
            self._examination = shared_loop().task(self._look_at(error))
        return lost

    async def examined(self, deadline_s: float) -> None:
        """Until it is known whether the dead executor stays in the session, where it would take the next calls, too."""
        if self._examination is not None:
            await asyncio.wait([self._examination], timeout=max(0.0, deadline_s))

    async def _look_at(self, error: LostError) -> None:
        await self._examine(self._session, error)

    async def _absent(self, request: Request) -> str:
        """The first member that did not come to the call's barrier; empty when all came, or when that is not known."""
        assert request.barrier is not None
        barrier = ObjectHandle(request.barrier, 0, self._session.objects.endpoint)
        try:
            parts = await shared_loop().blocking(self._session.objects.read, barrier, deadline_s=READ_S)
        except ClusterError:
            return ""
        came = {pickle.loads(data)["executor"] for _, data in parts.patches}
        return next((executor for executor in self.executors if executor not in came), "")

    async def _missing(self) -> str:
        """The member that has not answered when all others have; empty when that does not tell."""
        end = time.monotonic() + OTHERS_S
        while time.monotonic() < end:
            missing = set(self.executors) - {call.executor for call in self._calls}
            if len(missing) == 1:
                return missing.pop()
            await asyncio.sleep(0.05)
        return ""

    async def _end(self, lost: GangLostError) -> None:
        if self.ended is not None:
            return
        self.ended = lost
        for attempt in list(self._session.tries.values()):
            if attempt.request.generation == self.generation:
                attempt.interrupt(lost)
        key = f"{self._session.plan.prefix}/{_gang_name(self.generation)}"
        told = shared_loop().task(_abort(self._session, self.generation, key))
        await asyncio.wait([told], timeout=END_S)  # it goes on in the background where the cluster does not answer


async def form_once(name: str, session: OpenSession, end: float, deadline_s: float, examine: Examine) -> Gang:
    """Every executor joins once, and answers when all have: a gang. What fails leaves no half of one behind."""
    generation, world = secrets.token_hex(6), session.plan.executors
    key = f"{session.plan.prefix}/{_gang_name(generation)}"
    try:
        await _put(session, key, world, deadline_s)
    except DeadlineError as error:
        raise DeadlineError(f"gang {name} did not form within {deadline_s:g} s: {error}") from error
    request = Request("@join", pickle.dumps(((), {})), generation=generation)
    calls = [Call(f"{name}.@join#{number}", deadline_s) for number in range(world)]
    joins = [shared_loop().task(_join(session, call, request, end)) for call in calls]
    try:
        members = await asyncio.gather(*joins)
    except BaseException as error:
        for join in joins:
            join.cancel()
        text = await _how_many_came(session, key, world)
        shared_loop().task(_abort(session, generation, key))
        if isinstance(error, DeadlineError) or (isinstance(error, LostError) and time.monotonic() >= end):
            raise DeadlineError(f"gang {name}: {text} within {deadline_s:g} s; {error}") from error
        raise
    return Gang(name, session, members[0], examine)


async def _join(session: OpenSession, call: Call, request: Request, end: float) -> dict[str, Any]:
    """Its failure is raised at once: the other members wait for it in vain."""
    return value_of(await session.run(call, request, end), call.label)


async def _abort(session: OpenSession, generation: str, key: str) -> None:
    await session.cancellation.end_generation(generation)
    await _delete(session, key)


async def _how_many_came(session: OpenSession, key: str, world: int) -> str:
    handle = ObjectHandle(key, 0, session.objects.endpoint)
    try:
        parts = await shared_loop().blocking(session.objects.read, handle, deadline_s=READ_S)
    except ClusterError as error:
        return f"it is not known how many of {world} members came ({error})"
    came = {pickle.loads(data)["executor"] for _, data in parts.patches}
    return f"{len(came)} of {world} members came"


async def _put(session: OpenSession, key: str, world: int, deadline_s: float) -> None:
    """A meeting point, to which the members append themselves."""
    prefix, _, name = key.rpartition("/")
    await shared_loop().blocking(
        session.objects.put, prefix, pickle.dumps({"world": world}), name, deadline_s=deadline_s
    )


async def _delete(session: OpenSession, key: str) -> None:
    if not session.is_closing:
        await shared_loop().blocking(session.objects.delete, key)


def _gang_name(generation: str) -> str:
    return f"gang-{generation}"


def _all_raised(calls: list[Call]) -> bool:
    return all(call.done() and isinstance(call.error(), CallError | PayloadError) for call in calls)
