"""An embedded cluster of its own, for several flows to share: started detached, found by its directory.

The directory holds `state.json` (endpoints, process), `lock` (held as long as the cluster lives), its log and those of
its executors. Whoever holds the lock is the cluster; the state only says how to reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeker.cluster.embedded import server_environment, server_line
from seeker.cluster.local.reaper import start_time
from seeker.cluster.named import Address
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, ConfigError, DeadlineError

DEFAULT_DIRECTORY = ".seeker-cluster"
STATE_NAME, LOCK_NAME, LOG_NAME = "state.json", "lock", "cluster.log"
START_DEADLINE_S = 30.0
TERM_DEADLINE_S, KILL_DEADLINE_S = 15.0, 5.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class SharedState:
    """What the cluster wrote of itself. Example: ``SharedState(directory, {"pid": 4711, "endpoint": "http://…"})``."""

    directory: Path
    facts: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.facts["pid"]

    @property
    def address(self) -> Address:
        return Address(self.facts["endpoint"], self.facts["cache_endpoint"], source=str(self.directory / STATE_NAME))

    def exports(self) -> str:
        """For a shell to evaluate."""
        endpoint, cache_endpoint = self.facts["endpoint"], self.facts["cache_endpoint"]
        return f"export FLAME_ENDPOINT={endpoint}\nexport FLAME_CACHE_ENDPOINT={cache_endpoint}"


def running_state(directory: Path) -> SharedState | None:
    """The cluster of this directory; None when none is running."""
    if not _is_held(directory / LOCK_NAME):
        return None
    path = directory / STATE_NAME
    _wait(path.exists, START_DEADLINE_S, f"{path}: a cluster is starting there, and is not ready")
    return read_state(directory)


def look(directory: Path) -> SharedState | None:
    """The cluster of this directory where one runs and has told how to reach it; for a hint, so nothing is raised."""
    try:
        return read_state(directory) if _is_held(directory / LOCK_NAME) else None
    except (ClusterError, ConfigError):
        return None


def read_state(directory: Path) -> SharedState:
    path = directory / STATE_NAME
    try:
        state = SharedState(directory, json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: cannot be read ({error}); end the cluster's process by hand") from error
    if state.facts.get("host") != socket.gethostname():
        raise ClusterError(f"{path}: this cluster runs on {state.facts.get('host')}; a cluster serves its machine only")
    return state


def start_shared(directory: Path, settings: ClusterSettings) -> tuple[SharedState, bool]:
    """The cluster of this directory, and whether it was started now."""
    lock = _opened_lock(directory)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = running_state(directory)
            if running is None:
                raise ClusterError(f"{directory}: the cluster there has just ended; start it again") from None
            return running, False
        (directory / STATE_NAME).unlink(missing_ok=True)
        return _launch(directory, settings, lock), True
    finally:
        os.close(lock)  # the cluster has its own copy of it


def _opened_lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return os.open(directory / LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be used ({error.strerror}); name another directory by --dir") from error


def _launch(directory: Path, settings: ClusterSettings, lock: int) -> SharedState:
    path, log_path = (directory / STATE_NAME).absolute(), directory / LOG_NAME
    log_dir = Path(settings.log_dir or directory / "logs").absolute()
    line = [*server_line(settings), "--log-dir", str(log_dir), "--state-file", str(path), "--lock", str(lock)]
    with open(log_path, "ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=server_environment(),
            start_new_session=True,
            pass_fds=[lock],
        )
    try:
        text = f"the cluster did not start{_tail(log_path, start)}"
        _wait(lambda: path.exists() or process.poll() is not None, START_DEADLINE_S, text)
        if process.poll() is not None:
            raise ClusterError(f"the cluster ended while starting{_tail(log_path, start)}")
        return read_state(directory)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _tail(log_path: Path, start: int) -> str:
    with open(log_path, "rb") as log:
        log.seek(max(start, os.path.getsize(log_path) - _LOG_TAIL_BYTES))
        text = log.read().decode("utf-8", "replace").strip()
    return f"; the end of {log_path}:\n{text}" if text else ""


def stop_shared(directory: Path) -> SharedState | None:
    """End the cluster of this directory, and nothing else; None when none is running. Nothing of it is left after."""
    state = running_state(directory)
    if state is None:
        (directory / STATE_NAME).unlink(missing_ok=True)
        return None
    if start_time(state.pid) != state.facts["pid_started"]:
        raise ClusterError(
            f"{directory / STATE_NAME}: process {state.pid} is not the cluster that wrote it, yet somebody holds "
            f"{directory / LOCK_NAME}; find and end that process by hand"
        )
    for signum, deadline_s in ((signal.SIGTERM, TERM_DEADLINE_S), (signal.SIGKILL, KILL_DEADLINE_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, signum)
        with contextlib.suppress(DeadlineError):
            _wait(lambda: _is_gone(state), deadline_s, "")
            (directory / STATE_NAME).unlink(missing_ok=True)
            return state
    raise ClusterError(f"the cluster (process {state.pid}) did not end; its files: {state.facts['root']}")


def _is_gone(state: SharedState) -> bool:
    """Its process has ended, and so has its guardian: the private directory goes last."""
    return not _is_held(state.directory / LOCK_NAME) and not Path(state.facts["root"]).exists()


def _is_held(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be opened ({error.strerror}); name another directory by --dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _wait(condition: Callable[[], bool], deadline_s: float, text: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise DeadlineError(f"{text} within {deadline_s:g} s")
        time.sleep(_POLL_S)
