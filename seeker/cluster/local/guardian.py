"""The cluster's side of its reaper: tells it which process groups live, and starts another when it is killed."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from seeker.cluster.local import reaper

_RESTART_PAUSE_S = 0.2
_STOP_DEADLINE_S = 5.0

_log = logging.getLogger("seeker.cluster.local")


class GroupWatch(Protocol):
    """Who must hear of every process group that an executor starts and ends."""

    def born(self, group: int) -> None: ...
    def gone(self, group: int) -> None: ...


class Guardian:
    """Runs `reaper.py` in a session of its own. Used on the server's event loop only."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._line = [sys.executable, "-I", "-S", reaper.__file__, *map(str, directories)]
        self._groups: set[int] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._launch()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Its input ends, it removes what is left, and is waited for."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_DEADLINE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def born(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def gone(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, text: str) -> None:
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():  # else the next one is told all groups
            stdin.write(text.encode())

    async def _launch(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._line, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self._tell("".join(f"+{group}\n" for group in self._groups))

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            _log.warning("the guardian (pid %d) ended with %d; another is started", self._process.pid, code)
            await asyncio.sleep(_RESTART_PAUSE_S)
            try:
                await self._launch()
            except OSError as error:
                _log.error("no guardian: %s; what executors start survives this cluster if it is killed", error)
