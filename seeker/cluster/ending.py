"""The end of a session: what runs in it is cancelled, it is closed, its objects go; unless it must not be closed."""

from __future__ import annotations

import asyncio
import pickle
import time
from typing import TYPE_CHECKING, Any

from seeker.cluster import wire
from seeker.cluster.calls import Call, LostError, Request
from seeker.cluster.frontend import RefusedError
from seeker.cluster.loop import shared_loop
from seeker.errors import ClusterError, DeadlineError

if TYPE_CHECKING:
    from seeker.cluster.opened import OpenSession

CANCEL_DEADLINE_S = 5.0
CLOSE_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 2.0


async def close_patiently(session: OpenSession, cancel: bool) -> None:
    """Afterwards the session is closed and its objects are gone, or `given_up` says why it is left."""
    if session.embedded is not None and not session.embedded.is_alive():
        return  # with it went sessions, executors and objects
    if cancel:
        await asyncio.wait([shared_loop().task(session.cancellation.cancel_all())], timeout=CANCEL_DEADLINE_S)
    if not session.given_up:
        session.given_up = await _probe(session) or await _close_at_cluster(session)
    if not session.given_up:
        await shared_loop().blocking(session.objects.delete, session.plan.prefix, deadline_s=CLOSE_DEADLINE_S)


async def _close_at_cluster(session: OpenSession) -> str:
    """Refused while a call runs: until the cancel object has ended it. Why it could not be closed, or nothing."""
    request = wire.frontend.CloseSessionRequest(session_id=session.plan.id)
    end = time.monotonic() + CLOSE_DEADLINE_S
    while True:
        try:
            await session.frontend.ask("CloseSession", request, CLOSE_DEADLINE_S / 2)
            return ""
        except RefusedError as error:
            if error.status == "NOT_FOUND":
                return ""
            if time.monotonic() > end:
                return f"it cannot be closed: {error}"
        except DeadlineError as error:
            return f"it cannot be closed: {error}"
        await asyncio.sleep(0.1)


async def _probe(session: OpenSession) -> str:
    """Closing a session with a dead executor bricks a real cluster: ask each first. Why it must not be closed.

    A dead executor answers faster than a live one, so that of two questions for each it gets one.
    """
    if session.embedded is not None:
        return ""
    try:
        await session.watch.look_at_executors()
    except ClusterError as error:
        return f"its executors cannot be looked at: {error}"
    questions = [_ask_about(session) for _ in range(2 * len(session.watch.sightings.bound()))]
    for answer in await asyncio.gather(*questions, return_exceptions=True):
        if isinstance(answer, LostError) and answer.transport and await session.watch.is_poisoned(answer):
            return f"an executor is dead and still there: {answer}"
    return ""


async def _ask_about(session: OpenSession) -> dict[str, Any]:
    call = Call("@about", PROBE_DEADLINE_S)
    request = Request("@about", pickle.dumps(((), {})), idempotent=True)
    return await session.run(call, request, time.monotonic() + PROBE_DEADLINE_S)
