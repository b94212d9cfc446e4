"""Private directories of a cluster: mode 0700, with a lock that is held as long as the cluster lives."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from seeker.cluster.local.reaper import LOCK_NAME, remove_unless_held
from seeker.errors import ConfigError

PREFIX = "seeker-"
_MAX_CHARS = 40  # unix socket paths end at 104 characters, so a long TMPDIR will not do


@dataclass(frozen=True, slots=True)
class PrivateDirectory:
    """Example: ``PrivateDirectory(Path("/tmp/seeker-x7k2"), 9)``; `lock` is the descriptor that holds it."""

    path: Path
    lock: int

    def remove(self) -> None:
        os.close(self.lock)
        remove_unless_held(str(self.path))


def make_directory(parent: Path) -> PrivateDirectory:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise ConfigError(f"{parent}: no directory can be made here ({error.strerror}); name another") from error
    staged = path / f"{LOCK_NAME}.new"
    lock = os.open(staged, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    staged.rename(path / LOCK_NAME)  # visible only once it is held
    return PrivateDirectory(path, lock)


def short_temporary_directory() -> Path:
    chosen = tempfile.gettempdir()
    return Path(chosen if len(chosen) <= _MAX_CHARS else "/tmp")


def remove_stale_directories(parent: Path) -> list[Path]:
    """Remove the directories of clusters that were killed: ours, and their lock is free. What was removed."""
    return [path for path in sorted(parent.glob(f"{PREFIX}*")) if remove_unless_held(str(path))]
