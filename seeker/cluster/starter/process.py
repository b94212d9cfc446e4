"""The service process: starting it, one call at a time over its channel, its exit, its end."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from typing import Any, cast

from .channel import Channel, GarbageError
from .log import Log
from .processes import MARK, adopt_orphans, end_tree
from .running import Failure, RunningCall, Unbegun

LOOK_S = 0.25  # where the kernel does not tell of a process's exit, look for it this often
KILL_WAIT_S = 5.0
EXIT_WAIT_S = 1.0  # a closed channel is often the first news of an exit

# Not `-m`, which looks for modules in the working directory first.
_COMMAND = """import sys; sys.path[:] = filter(None, sys.path)
from seeker.cluster.leash import die_with; die_with(int(sys.argv[1]))
from seeker.cluster.child import main; main()"""


class ServiceProcess:
    """One process and our end of its channel. Only the thread of the running call talks; any thread may `kill`.

    The thread that makes it must live as long as it: the kernel ends it with that thread. Flame's threads do.
    """

    def __init__(
        self,
        setup: dict[str, Any],
        paths: list[str],
        environment: dict[str, str],
        held: list[int],
        log: Log,
        adopted: bool,
    ) -> None:
        """`paths`: where the code lies. `held`: open files that the process keeps locked for its life. `adopted`: all
        processes below this one are its."""
        self.name: str = setup["name"]
        self.count: int = setup["set_up_count"]
        self.is_ready = False
        self.log = log
        self._mark = uuid.uuid4().hex
        self._adopted = adopted
        self._call: RunningCall | None = None
        self._doing = ""
        self._lock = threading.Lock()  # nothing is killed by its id after it was waited for
        if adopted:
            adopt_orphans()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs, paths, environment, held)
        log.file.close()
        self._channel = Channel(ours, self._wait)
        self._exit = _exit_descriptor(self._process.pid)
        self._setup = json.dumps(setup).encode()

    def _start(self, end: socket.socket, paths: list[str], environment: dict[str, str], held: list[int]) -> Any:
        environment = {**os.environ, **environment, MARK: self._mark}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, environment.get("PYTHONPATH", "")]))
        environment["PYTHONUNBUFFERED"] = "1"  # last words reach the log
        passed = [end.fileno(), *held]
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(os.getpid()), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=self.log.file,
                stderr=self.log.file,
                env=environment,
                pass_fds=passed,
            )
        except OSError as error:
            raise Failure("setup", f"the process of service {self.name} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        with self._lock:
            return self._process.poll() is None

    # -- talking ---------------------------------------------------------------------------------------------------

    def make_ready(self, call: RunningCall) -> None:
        """Wait until the service is constructed; its own report when it cannot be."""
        if self.is_ready:
            return
        self._enter(call, f"setting up {self.name}")
        reply = self._exchange(self._setup, Failure)
        if reply.pop("kind") != "ready":
            raise Failure("setup", str(reply.pop("message", "")), more=reply)
        self.is_ready = True

    def run(self, call: RunningCall, gang: dict[str, Any] | None) -> dict[str, Any]:
        """The reply of one method. `Failure` ends it: died, deadline, or the reason that stopped the call."""
        self._enter(call, call.what)
        return self._exchange(pickle.dumps((call.request.method, call.request.arguments, gang)), Unbegun)

    def _enter(self, call: RunningCall, doing: str) -> None:
        self._call, self._doing = call, doing

    def _exchange(self, message: bytes, unread: type[Failure]) -> dict[str, Any]:
        died = Failure
        try:
            self._channel.send(message)
            return _reply_of(pickle.loads(self._channel.receive()))
        except (BrokenPipeError, ConnectionResetError):  # so says the kernel when the other end closed without reading
            died, problem = unread, self._exit_text()
        except (EOFError, OSError):
            problem = self._exit_text()
        except (GarbageError, ValueError, pickle.UnpicklingError) as error:
            problem = f"wrote something else into its channel ({error})"
        assert self._call is not None
        self._call.check(self._doing)  # whoever stopped the call has killed the process
        raise died("died", f"{self._doing}: the service process {problem}")

    def _wait(self, event: int) -> None:
        """Until the channel can go on. The process's exit ends the wait, also where a grandchild holds the channel."""
        assert self._call is not None
        self._call.check(self._doing)
        poller = select.poll()
        poller.register(self._channel.fileno(), event)
        if self._exit is not None:
            poller.register(self._exit, select.POLLIN)
        slice_s = LOOK_S if self._exit is None else 5.0
        ready = dict(poller.poll(max(0.0, min(self._call.left(), slice_s)) * 1000))
        if self._channel.fileno() not in ready and not self.is_alive():
            raise EOFError("the process has ended")

    def _exit_text(self) -> str:
        code = self._await_exit(EXIT_WAIT_S)
        if code is None:
            return "closed its channel"
        return f"was killed by {signal_name(code)}" if code < 0 else f"exited with code {code}"

    # -- ending ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process and all that it started; any thread may do so."""
        with self._lock:
            alive = self._process.poll() is None
            end_tree(self._process.pid if alive else None, self._mark, self._adopted, KILL_WAIT_S)

    def end(self) -> dict[str, Any]:
        """Kill it and say how it ended: exit code, signal, the end of its log."""
        code = self._await_exit(0.0)
        self.kill()
        code = self._await_exit(KILL_WAIT_S) if code is None else code
        self._channel.close()
        if self._exit is not None:
            os.close(self._exit)
            self._exit = None
        return {"exit_code": code, "signal": signal_name(code), "log": self.log.tail()}

    def _await_exit(self, seconds: float) -> int | None:
        """None: it is alive, or stuck in the kernel; then it goes with the executor."""
        end = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() >= end:
                return None
            time.sleep(0.005)
        return self._process.returncode


def _reply_of(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or "kind" not in found:
        raise GarbageError("a frame that holds no reply")
    return cast("dict[str, Any]", found)


def signal_name(code: int | None) -> str:
    """The name of the signal that an exit code stands for; empty for an ordinary exit."""
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _exit_descriptor(pid: int) -> int | None:
    """Readable when the process has ended; None where the kernel offers none."""
    try:
        return os.pidfd_open(pid)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    except (AttributeError, OSError):
        return None
