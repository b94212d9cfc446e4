"""Folders on a node that only we can write to, and waiting for a lock."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager

from .running import Failure, RunningCall

_PAUSE_S = 0.05


def private_folder(path: str) -> str:
    """`path`, made where it is missing; `Failure` when it is another user's or open to others."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise Failure("setup", f"folder {path} cannot be made: {error}; set TMPDIR", kills=False) from error
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        text = f"{path} is not a folder of user {os.getuid()} alone; remove it, or set TMPDIR"
        raise Failure("setup", text, kills=False)
    return path


@contextmanager
def locked(path: str, call: RunningCall, doing: str) -> Generator[None, None, None]:
    """Hold the lock file `path`; the call's end ends the wait for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not try_lock(descriptor, fcntl.LOCK_EX):
            call.pause(_PAUSE_S, doing)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
