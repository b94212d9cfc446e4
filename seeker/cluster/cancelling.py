"""The session's cancel object: what its starters must end. Written when it is first needed."""

from __future__ import annotations

import asyncio
import logging
import pickle

from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import FlightObjects
from seeker.cluster.session import CANCEL_NAME
from seeker.errors import ClusterError

_log = logging.getLogger("seeker.cluster")

_NUM_TRIES, _TRY_S, _PAUSE_S = 4, 2.0, 0.5
_KEPT_GENERATIONS = 64


class Cancellation:
    """Used on the shared loop. Every write replaces the whole object; writes that wait for one another are one.

    The object: ``{"all": False, "calls": ["5f0a-3"], "generations": ["91c2"]}``, pickled.
    """

    def __init__(self, objects: FlightObjects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._all = False
        self._calls: set[str] = set()
        self._generations: dict[str, None] = {}
        self._written: bytes | None = None
        self._lock = asyncio.Lock()
        self._has_ended = False

    def end(self) -> None:
        """For good: its session is closed, or goes with its cluster."""
        self._has_ended = True

    async def cancel_all(self) -> None:
        self._all = True
        await self._write()

    async def cancel_calls(self, *calls: str) -> None:
        self._calls.update(calls)
        await self._write()

    def forget_call(self, call: str) -> None:
        """It has ended: the next write leaves it out."""
        self._calls.discard(call)

    async def end_generation(self, generation: str) -> None:
        self._generations[generation] = None
        while len(self._generations) > _KEPT_GENERATIONS:
            del self._generations[next(iter(self._generations))]
        await self._write()

    async def _write(self) -> None:
        async with self._lock:
            for attempt in range(_NUM_TRIES):
                state = {"all": self._all, "calls": sorted(self._calls), "generations": list(self._generations)}
                data = pickle.dumps(state)
                if self._has_ended or data == self._written:
                    return
                try:
                    put = self._objects.put
                    await shared_loop().blocking(put, self._prefix, data, CANCEL_NAME, deadline_s=_TRY_S)
                    self._written = data
                    return
                except ClusterError as error:
                    if self._has_ended:
                        return
                    _log.warning("%s: cannot write the cancel object (try %d): %s", self._prefix, attempt + 1, error)
                    await asyncio.sleep(_PAUSE_S)
