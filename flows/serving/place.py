"""Where a served Prefect keeps its files, and who serves it.

The lock is the kernel's: it is free at once when the serving process dies, also by kill -9.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from seeker.errors import ConfigError, LockedError
from seeker.presets import project_root


@dataclass(frozen=True, slots=True)
class Served:
    """A Prefect that is served. Example: ``Served(pid=4711, url="http://127.0.0.1:4200/api")``."""

    pid: int
    url: str

    @property
    def ui(self) -> str:
        return self.url.removesuffix("/api")


@dataclass(frozen=True, slots=True)
class Place:
    """A home of Prefect's files: database, results, logs."""

    home: Path

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def _lock(self) -> Path:
        return self.home / "serve.lock"

    @property
    def _told(self) -> Path:
        return self.home / "serve.json"

    @contextmanager
    def hold(self) -> Generator[None]:
        """Be the one that serves this home; a `LockedError` names the other where there is one."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{self.home}: cannot be written ({error.strerror}); choose another --home") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._told.unlink(missing_ok=True)
            yield
            self._told.unlink(missing_ok=True)
        except BlockingIOError as error:
            raise LockedError(self._refusal()) from error
        finally:
            os.close(descriptor)

    def tell(self, served: Served) -> None:
        """Let commands and a second `seeker serve` find what is served here."""
        part = self._told.with_suffix(".part")
        part.write_text(json.dumps(asdict(served)))
        part.replace(self._told)

    def served(self) -> Served | None:
        """What is served here, when it is."""
        try:
            with open(self._lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return self._read()

    def _read(self) -> Served | None:
        try:
            return Served(**json.loads(self._told.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # it is starting and has not told yet

    def _refusal(self) -> str:
        served = self._read()
        if served is None:
            return f"{self.home}: another `seeker serve` is starting there; wait for it, or choose another --home"
        return (
            f"{self.home}: served already by process {served.pid}, at {served.ui}; use that one, stop it with "
            f"`kill {served.pid}`, or choose another --home"
        )


def default_place() -> Place:
    """`.prefect` in the project."""
    return Place(project_root() / ".prefect")
