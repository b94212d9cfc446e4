"""An executor's process: started under a leash, watched, and ended with its whole process group."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from seeker.cluster.local import launch
from seeker.cluster.local.guardian import GroupWatch

_SOCKET_POLL_S = 0.005
_LAST_REPLY_S = 0.2  # a reply may have been sent just before the process ended
_LOG_TAIL_BYTES = 2000


class ProcessError(Exception):
    """The process could not be started, or ended or stayed deaf before its socket was open."""


class GoneError(Exception):
    """The process ended while it was waited for."""


class ExecutorProcess:
    """A process of its own group and session, listening on `socket_path`, writing to `log_path`."""

    def __init__(self, socket_path: Path, log_path: Path, groups: GroupWatch) -> None:
        self._groups = groups
        self._socket_path = socket_path
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self.exited.done()

    async def start(self, command: launch.Command, socket_deadline_s: float) -> None:
        """Start the command and wait until something accepts on its socket."""
        leash = (sys.executable, "-I", "-S", "-c", launch.LEASH, str(os.getpid()))
        try:
            command.directory.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *leash,
                    *command.line,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=command.directory,
                    env=command.environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessError(f"cannot start {command.line[0]!r}: {error}") from error
        self._groups.born(self._process.pid)
        self.exited = asyncio.ensure_future(self._process.wait())
        await self._await_socket(socket_deadline_s)

    async def _await_socket(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while not self._accepts():
            if not self.is_alive:
                raise ProcessError(f"the process {self.exit_text()} before it opened its socket")
            if loop.time() > deadline:
                raise ProcessError(f"the process did not open its socket within {deadline_s:g} s")
            await asyncio.sleep(_SOCKET_POLL_S)

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket_path)) == 0

    async def while_alive(self, call: Any) -> Any:
        """Await a gRPC call to the process; the process's end ends the wait at once with `GoneError`."""
        reply: asyncio.Future[Any] = asyncio.ensure_future(call)
        waiting: list[asyncio.Future[Any]] = [reply, self.exited]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                await asyncio.wait([reply], timeout=_LAST_REPLY_S)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not reply.done():
            call.cancel()
            raise GoneError
        if reply.exception() is not None:  # a broken connection is often the first news of an exit
            await asyncio.wait([self.exited], timeout=_LAST_REPLY_S)
        return reply.result()

    async def end(self, kill_after_s: float) -> None:
        """TERM, then KILL: the whole group, also what the process left behind in it."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        await asyncio.wait([self.exited], timeout=kill_after_s)
        self.signal(signal.SIGKILL)
        await asyncio.wait([self.exited])
        self._groups.gone(self._process.pid)

    def signal(self, signum: signal.Signals) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signum)
        except ProcessLookupError:
            return

    def exit_text(self) -> str:
        code = self.exited.result()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def log_tail(self) -> str:
        """The last lines it wrote, with a heading; empty when it wrote none."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
                tail = log.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
        return f"\n--- end of {self._log_path.name} ---\n{tail}" if tail else ""
