"""One writer per run directory.

A `flock` is released by the kernel when its holder dies, also by kill -9, so there is no stale lock to clean up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from seeker.errors import LockedError, RunDirectoryError


@contextmanager
def writer_lock(root: Path) -> Generator[None]:
    """Hold the run directory at `root` for writing; refuses at once, naming the holder, when another process does."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"{root}: cannot be written ({error.strerror}); choose another --out") from error
    try:
        _take(descriptor, root)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
        raise LockedError(
            f"{root}: process {holder} is writing this run; wait for it, stop it, or choose another --out"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
