"""One writer per run directory.

A `flock` is released by the kernel when its holder dies, also by kill -9, so there is no stale lock to clean up. The
file says who holds it, for the one who is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from seeker.errors import LockedError, RunDirectoryError
from seeker.program import program

_TRIES, _PAUSE_S = 3, 0.05  # one who only looks holds the lock for a moment


@dataclass(frozen=True, slots=True)
class Writer:
    """Who holds a run directory. Example: ``Writer(run="runs/demo", pid=4711, host="node7", since=1760000000.1)``."""

    run: str
    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


@contextmanager
def writer_lock(root: Path) -> Generator[None]:
    """Hold the run directory at `root` for writing; refuses at once, naming the holder, when another process does."""
    descriptor = _open(root)
    try:
        while not _take(descriptor, root):  # the file was removed while it was opened
            os.close(descriptor)
            descriptor = _open(root)
        _sign(descriptor, root)
        yield
    finally:
        os.close(descriptor)


def current_writer(root: Path) -> Writer | None:
    """Who is writing the run, or None. Looking changes nothing and keeps no writer out."""
    path = root / ".lock"
    told = _read(path)
    if told is None or (told.host == socket.gethostname() and not is_alive(told.pid)):
        return None
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return told
    return None


def is_alive(pid: int) -> bool:
    """True when a process of this host has that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _open(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        return os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"{root}: cannot be written ({error.strerror}); choose another --out") from error


def _take(descriptor: int, root: Path) -> bool:
    """Lock the file; False when it is not the one that bears the name any more."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if not left:
                raise LockedError(_refusal(root, _read(root / ".lock"))) from error
            time.sleep(_PAUSE_S)
    try:
        return os.fstat(descriptor).st_ino == os.stat(root / ".lock").st_ino
    except FileNotFoundError:
        return False


def _refusal(root: Path, holder: Writer | None) -> str:
    told = f"{root}: this run is being written by {holder or 'another process'}; wait for it, or stop it"
    if holder is None:
        return told
    return f"{told}: `{program()} pause {shlex.quote(str(root))}` after its next commit, `kill {holder.pid}` at once"


def _sign(descriptor: int, root: Path) -> None:
    told = Writer(str(root), os.getpid(), socket.gethostname(), round(time.time(), 3))
    text = json.dumps(asdict(told)).encode()
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        raise RunDirectoryError(
            f"{root}: cannot be written ({error.strerror}); mend it, or choose another --out"
        ) from error


def _read(path: Path) -> Writer | None:
    """Who signed the lock's file; None when nobody has (yet)."""
    try:
        return Writer(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
