"""An executor's process: started under a leash, watched, and ended with its whole process group."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster.local import launch
from seeker.cluster.local.guardian import GroupWatch
from seeker.cluster.local.strays import end_strays

_SOCKET_POLL_S = 0.005
_LAST_REPLY_S = 0.2  # a reply may have been sent just before the process ended
_LOG_TAIL_BYTES = 2000
_LISTENING = (0, errno.EAGAIN)  # the latter: it listens, and its queue is full


class ProcessError(Exception):
    """The process could not be started, or ended or stayed deaf before its socket was open."""


class GoneError(Exception):
    """The process ended while it was waited for."""


class ExecutorProcess:
    """A process of its own group and session, listening on `socket_path`, writing to `log_path`.

    It is not collected before `end`, so that its number, which is its group's, cannot become another's.
    """

    def __init__(self, socket_path: Path, log_path: Path, groups: GroupWatch) -> None:
        self._groups = groups
        self._socket_path = socket_path
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self.exited.done()

    @property
    def was_started(self) -> bool:
        return self._process is not None

    def spawn(self, command: launch.Command) -> None:
        leash = (sys.executable, "-I", "-S", "-c", launch.LEASH, str(os.getpid()))
        try:
            command.directory.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [*leash, *command.line],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=command.directory,
                    env=command.environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:  # the latter: a NUL in an argument or a variable
            raise ProcessError(f"cannot start {command.line[0]!r}: {error}") from error
        self._groups.born(self._process.pid)
        _watch_exit(self._process, self.exited)

    async def await_socket(self, deadline_s: float) -> None:
        """Wait until something accepts on its socket."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while not self.accepts():
            if not self.is_alive:
                raise ProcessError(f"the process {self.exit_text()} before it opened its socket")
            if loop.time() > deadline:
                raise ProcessError(f"the process did not open its socket within {deadline_s:g} s")
            await asyncio.sleep(_SOCKET_POLL_S)

    def accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            return probe.connect_ex(str(self._socket_path)) in _LISTENING

    async def while_alive(self, call: Any) -> Any:
        """Await a gRPC call to the process; the process's end ends the wait at once with `GoneError`."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object) -> None:
            if not news.done():
                news.set_result(None)

        call.add_done_callback(wake)
        self.exited.add_done_callback(wake)
        try:
            await news
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self.exited.remove_done_callback(wake)
        return await self._reply(call)

    async def _reply(self, call: Any) -> Any:
        reply: asyncio.Future[Any] = asyncio.ensure_future(call)
        if not call.done():
            await asyncio.wait([reply], timeout=_LAST_REPLY_S)
            if not reply.done():
                call.cancel()
                raise GoneError
        try:
            return await reply
        except grpc.RpcError:  # a broken connection is often the first news of an exit
            await asyncio.wait([self.exited], timeout=_LAST_REPLY_S)
            raise

    async def end(self, kill_after_s: float) -> None:
        """TERM, then KILL: the whole group, and what it started in groups of their own."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        await asyncio.wait([self.exited], timeout=kill_after_s)
        self.signal(signal.SIGKILL)
        await asyncio.wait([self.exited])
        self._process.wait()
        self._groups.gone(self._process.pid)
        marker = f"FLAME_INSTANCE_ENDPOINT={self._socket_path}"
        await asyncio.get_running_loop().run_in_executor(None, end_strays, marker)

    def signal(self, signum: signal.Signals) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signum)
        except (ProcessLookupError, PermissionError):  # nobody is left, or only zombies (macOS)
            return

    def exit_text(self) -> str:
        assert self._process is not None
        code = _exit_code(self._process)
        return f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"

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


def _watch_exit(process: subprocess.Popen[bytes], exited: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
        threading.Thread(target=_wait, args=(process, exited, loop), daemon=True).start()
        return

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        exited.set_result(None)

    loop.add_reader(descriptor, ended)


def _wait(process: subprocess.Popen[bytes], exited: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
    process.wait()
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(exited.set_result, None)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """As `Popen` has it, negative for a signal; read without collecting the process."""
    if process.returncode is not None:
        return process.returncode
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:  # not yet there to be collected, though its end is known
        return process.wait()
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
