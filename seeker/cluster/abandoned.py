"""Sessions that stay at the cluster because one of their executors is dead: kept from being released meanwhile.

To release a dead executor bricks a real cluster as closing its session does, and the engine releases what had no call
for the application's `delay_release`. So as long as its driver lives, such a session gets calls that do nothing. A dead
executor fails its share of them at once and stays, with nothing to wait for.
"""

from __future__ import annotations

import asyncio
import logging

from seeker.cluster import wire
from seeker.cluster.opened import OpenSession
from seeker.cluster.session import pickle_request
from seeker.errors import ClusterError

_log = logging.getLogger("seeker.cluster")

ROUNDS_PER_RELEASE = 4
CALLS_PER_EXECUTOR = 2  # whoever is quick may take two
_NOTHING = {"method": "@about", "seconds": 1.0}  # which starts no service process
_DEADLINE_S = 5.0
ADVICE = "it keeps its executors; restart the cluster's session manager as soon as this run has ended"


async def keep_from_release(session: OpenSession) -> None:
    """For ever, on the shared loop."""
    while True:
        try:
            states = await session.watch.look_at_executors()
            num_bound = sum(state == wire.EXECUTOR_BOUND for state in states.values())
            await asyncio.gather(*(_send(session) for _ in range(CALLS_PER_EXECUTOR * num_bound)))
        except ClusterError as error:
            _log.info("session %s: its executors could not be kept busy: %s", session.plan.id, error)
        await asyncio.sleep(session.release_s / ROUNDS_PER_RELEASE)


async def _send(session: OpenSession) -> None:
    task = wire.types.TaskSpec(session_id=session.plan.id, input=pickle_request(_NOTHING))
    await session.frontend.ask("CreateTask", wire.frontend.CreateTaskRequest(task=task), _DEADLINE_S)
