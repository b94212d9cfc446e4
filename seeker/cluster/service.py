"""A service as its caller sees it: calls that go to any free executor, one at a time each, or to a gang as one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from seeker.cluster.calls import (
    SLACK_S,
    Call,
    CancelledCallError,
    LostError,
    Request,
    pickled_arguments,
    value_of,
)
from seeker.cluster.gang import Gang, form_once
from seeker.cluster.loop import shared_loop
from seeker.cluster.opened import GRACE_S, MovedError, OpenSession
from seeker.cluster.opening import Opener, ServicePlan
from seeker.errors import ClusterError, ConfigError, DeadlineError, GangLostError

_log = logging.getLogger("seeker.cluster")

MAX_RETRIES = 2  # of an idempotent call whose executor was lost
MAX_REPLACED = 64  # sessions of one service
MAX_FORMINGS = 5  # of one gang, when members are lost while it forms


class Service:
    """One session at a time: a session that a dead executor has poisoned is replaced, and left behind unclosed."""

    def __init__(self, plan: ServicePlan, opener: Opener, on_close: Callable[[Service], object]) -> None:
        self.name = plan.name
        self.plan = plan
        self._opener = opener
        self._on_close = on_close
        self._session = opener.open(plan)
        self._given_up: list[OpenSession] = []
        self._replacing = asyncio.Lock()
        self._forming = asyncio.Lock()
        self._gang: Gang | None = None  # the latest generation
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def prefix(self) -> str:
        """``<app>/<session>``: where its objects are."""
        return self._session.plan.prefix

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, *args: Any, deadline_s: float, idempotent: bool = False, **kwargs: Any) -> Call:
        """Submit one call; it answers or fails within `deadline_s` (waiting for a free executor included)."""
        if self.plan.gang:
            raise ConfigError(f"service {self.name} is a gang: form() it, and use its call_all or run")
        self._check_open()
        arguments = pickled_arguments(f"{self.name}.{method}", args, kwargs)
        call = Call(f"{self.name}.{method}#{next(self._numbers)}", deadline_s, self._cancel)
        shared_loop().spawn(self._finish(call, Request(method, arguments, idempotent)))
        return call

    def form(self, deadline_s: float) -> Gang:
        """All executors as a gang, once every one of them is set up and has come; again after a `GangLostError`.

        A generation that has not ended ends with that: its executors are those of the next.
        """
        if not self.plan.gang:
            raise ConfigError(f"service {self.name} is no gang: start it with gang=True")
        if not math.isfinite(deadline_s):
            raise ConfigError(f"gang {self.name}: deadline_s is {deadline_s}, expected a number of seconds")
        self._check_open()
        try:
            return shared_loop().wait(self._form(deadline_s), deadline_s + GRACE_S + SLACK_S)
        except TimeoutError:
            raise DeadlineError(f"gang {self.name} did not form within {deadline_s:g} s: no answer") from None

    def close(self, patient: bool = True) -> None:
        """Cancel what runs, close the session, delete its objects. `patient=False`: the cluster is ending anyway."""
        shared_loop().wait(self.closing(patient))

    async def closing(self, patient: bool) -> None:
        """`close`, on the shared loop."""
        if self._closed:
            return
        self._closed = True
        closings = [self._close_session(session, patient) for session in (*self._given_up, self._session)]
        results = await asyncio.gather(*closings, return_exceptions=True)
        self._on_close(self)
        for error in results:
            if error is not None:
                raise error

    async def _close_session(self, session: OpenSession, patient: bool) -> None:
        is_known = bool(session.given_up)
        await session.close(patient)
        if not session.given_up:
            self._opener.lease.disown(sessions=session.plan.id, prefixes=session.plan.prefix)
            self._opener.objects.prefixes.discard(session.plan.prefix)
        elif not is_known:
            await shared_loop().blocking(self._opener.abandon, session, session.given_up)

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(f"service {self.name} is closed")

    # -- on the shared loop ------------------------------------------------------------------------------------------

    async def _finish(self, call: Call, request: Request) -> None:
        try:
            call.settle(value=await self._until_done(call, request))
        except Exception as error:
            call.settle(error=error)

    async def _until_done(self, call: Call, request: Request) -> Any:
        end = time.monotonic() + call.deadline_s
        while True:
            self._check_wanted(call)
            session = self._session
            try:
                return value_of(await session.run(call, request, end), call.label)
            except MovedError as error:
                await self._replace(session, str(error))
            except LostError as error:
                await self._replace_if_poisoned(session, error)
                if not request.idempotent or call.num_retries >= MAX_RETRIES or self._closed:
                    raise
                call.num_retries += 1
                _log.warning("%s is done again (%d of %d): %s", call.label, call.num_retries, MAX_RETRIES, error)
            if time.monotonic() > end:
                raise DeadlineError(f"{call.label}: its executor was lost at its deadline of {call.deadline_s:g} s")

    def _check_wanted(self, call: Call) -> None:
        if self._closed or call.done():
            raise CancelledCallError(f"{call.label} was cancelled{': its service was closed' if self._closed else ''}")

    def _cancel(self, call: Call) -> None:
        """From any thread: settled at once; whatever runs for it is ended in the background."""
        error = CancelledCallError(f"{call.label} was cancelled")
        call.settle(error=error)
        shared_loop().soon(self._interrupt, call, error)

    def _interrupt(self, call: Call, error: ClusterError) -> None:
        for session in (*self._given_up, self._session):
            for attempt in list(session.tries.values()):
                if attempt.call is call:
                    attempt.interrupt(error)

    async def _replace_if_poisoned(self, session: OpenSession, error: LostError) -> None:
        if error.transport and not self._closed and await session.watch.is_poisoned(error):
            await self._replace(session, f"its executor {error.executor or 'process'} is dead and still there: {error}")

    async def _replace(self, session: OpenSession, why: str) -> None:
        """Open another session, once, whoever asks; the old one is left: closing it bricks a real cluster."""
        async with self._replacing:
            if self._session is not session or self._closed:
                return
            if len(self._given_up) >= MAX_REPLACED:
                raise ClusterError(f"service {self.name}: {MAX_REPLACED} sessions were poisoned, the last: {why}")
            new = await shared_loop().blocking(self._opener.open, self.plan)
            self._given_up.append(session)
            self._session = new
            session.give_up(why)
            await shared_loop().blocking(self._opener.abandon, session, why)

    async def _form(self, deadline_s: float) -> Gang:
        end = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._forming.acquire()  # two at once would each have some of the executors
        except TimeoutError:
            text = f"gang {self.name} did not form within {deadline_s:g} s: it is being formed by another caller"
            raise DeadlineError(text) from None
        try:
            if self._gang is not None:
                await self._gang.ending("it is formed again")
                await self._gang.examined(end - time.monotonic())
            self._gang = await self._form_by(end, deadline_s)
            return self._gang
        finally:
            self._forming.release()

    async def _form_by(self, end: float, deadline_s: float) -> Gang:
        for number in itertools.count(1):
            session = self._session
            try:
                return await form_once(self.name, session, end, deadline_s, self._replace_if_poisoned)
            except LostError as error:
                await self._replace_if_poisoned(session, error)
                if number >= MAX_FORMINGS or self._closed or time.monotonic() > end:
                    raise GangLostError(f"gang {self.name} lost a member while it formed: {error}") from error
        raise AssertionError("unreachable")
