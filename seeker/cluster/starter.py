"""What Flame instantiates: a class that cannot die, fail or hang.

A process that dies in a call, or a constructor that raises or hangs, bricks a real 0.6 cluster. So the constructor does
nothing, and the work happens in a child process that the first call starts and later calls find warm. A call's
deadline, a cancel object or the child's death ends the call with its reason as data; the executor lives on.

This file's source travels inside the session (see `session.py`): it needs the standard library and flamepy only, no
Seeker on the executor's path, and the same source runs on another Python than the driver's.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, ClassVar

POLL_S = 1.0  # between looks at the cancel object
KILL_WAIT_S = 5.0
LOG_TAIL_BYTES = 4000
CHILD_MODULE = "seeker.cluster.child"


class Starter:
    """Answers every call with a dict: ``{"kind": "value", "value": pickle}`` or a failure with its reason.

    `SETUP` is filled in per session: name, target, config, prefix, code_root, log_dir, cache endpoint.
    """

    SETUP: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        """Nothing may fail here."""

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one method in the child. `request`: method, arguments (pickled), seconds allowed, wall-clock end."""
        with _lock:
            _busy.set()
            try:
                return _run(self.SETUP, request)
            except BaseException as error:  # the executor must not fail, whatever happens
                while _children:
                    _children.pop().end()
                return {"kind": "starter", "message": f"{type(error).__name__}: {error}"}
            finally:
                _busy.clear()


def configured(setup: dict[str, Any]) -> type[Starter]:
    """The class that Flame instantiates for one session."""
    return type("Starter", (Starter,), {"SETUP": setup})


class Child:
    """The process that holds the service, and our end of its channel."""

    def __init__(self, setup: dict[str, Any], count: int) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # a whole call fits, so that a stopped child never blocks us in a write
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.log_path = _log_path(setup)
        environment = dict(os.environ)
        paths = [setup["code_root"], environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment["PYTHONUNBUFFERED"] = "1"  # last words reach the log
        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", CHILD_MODULE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        self.channel = Connection(ours.detach())
        self.count = count
        self.ready = False
        self.channel.send_bytes(json.dumps({**setup, "executor": _executor_id(), "set_up_count": count}).encode())

    def end(self) -> None:
        self.process.kill()
        self.channel.close()
        try:
            self.process.wait(timeout=KILL_WAIT_S)
        except subprocess.TimeoutExpired:  # stuck in the kernel: it cannot be waited for, and goes with the executor
            return

    def log_tail(self) -> str:
        with open(self.log_path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")


_lock = threading.Lock()
_children: list[Child] = []  # none, or the one that is warm
_counts = [0]
_busy = threading.Event()
_cancelled = threading.Event()


class Failure(Exception):
    """Ends a call; its fields are the reply."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def _run(setup: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    method, arguments, seconds, end = (request[name] for name in ("method", "arguments", "seconds", "end"))
    if end is not None:  # the driver's clock is ours: what the call waited in the queue counts
        seconds = min(seconds, end - time.time())
    deadline = time.monotonic() + seconds
    try:
        child = _warm_child(setup, deadline)
        child.channel.send_bytes(pickle.dumps((method, arguments)))
        reply = _receive(child, setup, deadline, f"{setup['name']}.{method}")
    except Failure as failure:
        return _failed(failure)
    reply["set_up_count"] = child.count
    reply["executor"] = _executor_id()
    return reply


def _warm_child(setup: dict[str, Any], deadline: float) -> Child:
    if _children and _children[0].process.poll() is not None:  # it died between two calls: start anew
        _children.pop().end()
    if not _children:
        root = setup["code_root"]
        if not os.path.isdir(os.path.join(root, "seeker", "cluster")):
            raise Failure("setup", f"the code tree {root!r} is not on node {socket.gethostname()}: name a code_root")
        if _counts[0] == 0:
            threading.Thread(target=_watch_cancel, args=(setup,), name="cancel-watch", daemon=True).start()
        _counts[0] += 1
        _children.append(Child(setup, _counts[0]))
    child = _children[0]
    if not child.ready:
        reply = _receive(child, setup, deadline, f"setting up {setup['name']}")
        if reply["kind"] != "ready":
            raise Refused(reply)
        child.ready = True
    return child


class Refused(Failure):
    """The service could not be constructed; the child's own report is the reply."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__("setup", report["message"])
        self.report = report


def _receive(child: Child, setup: dict[str, Any], deadline: float, what: str) -> dict[str, Any]:
    """The child's next message; its death, the deadline and the cancel object raise `Failure`."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failure("deadline", f"{what} did not finish within its deadline and was killed")
        try:
            if child.channel.poll(min(left, POLL_S)):
                return pickle.loads(child.channel.recv_bytes())
        except (EOFError, OSError):
            raise Failure("died", f"{what}: the service process {_exit_text(child)}") from None
        if _cancelled.is_set():
            raise Failure("cancelled", f"{what} was cancelled")


def _failed(failure: Failure) -> dict[str, Any]:
    """End the child and report, with what it last wrote."""
    report: dict[str, Any] = {"kind": failure.kind, "message": str(failure), "executor": _executor_id()}
    if isinstance(failure, Refused):
        report.update(failure.report)
    while _children:
        child = _children.pop()
        child.end()
        report["exit_code"] = child.process.returncode
        report["log"] = child.log_tail()
    return report


def _exit_text(child: Child) -> str:
    try:
        code = child.process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "closed its channel"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _watch_cancel(setup: dict[str, Any]) -> None:
    """Look for the session's cancel object while a call runs. On its own thread: the cache may not answer at all."""
    cache: Any = importlib.import_module("flamepy.core.cache")
    cancel = cache.ObjectRef(endpoint=setup["cache_endpoint"], key=setup["cancel_key"], version=0)
    while True:
        _busy.wait()
        time.sleep(POLL_S)
        try:
            cache.get_object(cancel)
        except Exception:  # missing, or the cache is away: then the deadline decides
            continue
        _cancelled.set()
        return


def _executor_id() -> str:
    return os.path.splitext(os.path.basename(os.environ.get("FLAME_INSTANCE_ENDPOINT", "unknown")))[0]


def _log_path(setup: dict[str, Any]) -> str:
    """In the driver's log directory where this node has it, else in the executor's own, which goes with it."""
    name = f"{setup['name']}-{_executor_id()[:8]}.log"
    for directory in (setup["log_dir"], os.getcwd()):
        try:
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, name)
            open(path, "ab").close()
            return path
        except (OSError, TypeError):
            continue
    return os.path.join(tempfile.gettempdir(), f"seeker-{os.getpid()}-{name}")
