"""The file that a service process writes to: where it lies, its end for error texts, and its bound."""

from __future__ import annotations

import os
import tempfile

MAX_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 4 * 1024 * 1024  # of a log that grew too long, in a file beside it
TAIL_BYTES = 4000


def log_path(name: str, log_dir: str | None) -> str:
    """In the driver's log directory where this node has it, else in the executor's own, which goes with it."""
    for directory in (log_dir, os.getcwd()):
        if directory and os.path.isdir(directory) and os.access(directory, os.W_OK):
            return os.path.join(directory, name)
    return os.path.join(tempfile.gettempdir(), f"seeker-{os.getpid()}-{name}")


class Log:
    """One process's part of the file, from where it began to write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open(path, "ab")  # noqa: SIM115 - closed once the process has it
        self._start = self.file.tell()

    def tail(self) -> str:
        """What it wrote last; why it cannot be read, where it cannot."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(min(self._start, size), size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError as error:
            return f"(log {self.path} cannot be read: {error})"

    def bound(self) -> None:
        """Start the file anew when it is too long. The process appends, so it goes on at the new end."""
        try:
            if os.path.getsize(self.path) > MAX_BYTES:
                self._restart()
        except OSError:  # removed, or the disk is full: as good as bounded
            return

    def _restart(self) -> None:
        with open(self.path, "r+b") as file:
            file.seek(-KEPT_BYTES, os.SEEK_END)
            kept = file.read()
            file.truncate(0)
        self._start = 0
        with open(self.path + ".1", "wb") as file:
            file.write(kept)
