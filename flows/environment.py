"""Where Prefect keeps its files, set in the environment before Prefect is imported.

Without `PREFECT_API_URL` the flows run in process against an ephemeral server whose files live in `.prefect/` inside
the project: no cloud profile of the user is read and none is changed. With `PREFECT_API_URL` the user's server, home
and profile are used as they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from seeker.errors import InfrastructureError, SeekerError
from seeker.presets import project_root

PRIVATE = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    # A fresh database takes up to 17 s on two busy cores; Prefect's own limit is 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Recording one task run at a time costs the server 55 ms each and starves the two cores; batches cost 10 ms.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TRIGGERS_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Four task runs a step at INFO would bury the one line a step that the loop prints.
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
}
FOREIGN = ("PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")


def prepare_environment(environ: MutableMapping[str, str] | None = None) -> Path | None:
    """Point Prefect at the project's private home; the home, or None where the user named a server.

    Values that the user set keep their value, except the home, profile and credentials of another server.
    """
    environ = os.environ if environ is None else environ
    if environ.get("PREFECT_API_URL"):
        return None
    home = project_root() / ".prefect"
    home.mkdir(parents=True, exist_ok=True)
    for name in FOREIGN:
        environ.pop(name, None)
    for name, value in PRIVATE.items():
        environ.setdefault(name, value)
    environ["PREFECT_HOME"] = str(home)
    environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = str(home / "storage")
    return home


@contextmanager
def no_heartbeat() -> Iterator[None]:
    """Without flow heartbeats inside: each costs a synchronous flow about one second at its end.

    They matter on a server that watches for dead runs only, so a user's server keeps its setting. Prefect 3.9
    accepts None from Python but not from the environment.
    """
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def run_quietly() -> Iterator[None]:
    """Run flows as a command does: no heartbeat, and each error that Seeker raises on purpose told once.

    Prefect prints every exception that passes through a task or flow with its traceback, several times. The command
    prints the message of a `SeekerError` at its end, so the terminal gets none of these; the server's log keeps them.
    """
    from prefect.logging.configuration import setup_logging

    setup_logging()  # else the first flow run does it, and there is no handler yet to put the filter on
    handlers = logging.getLogger().handlers  # Prefect prints through the root logger
    known = KnownErrors()
    for handler in handlers:
        handler.addFilter(known)
    try:
        with no_heartbeat():
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(known)


class KnownErrors(logging.Filter):
    """Keeps a `SeekerError` out of the terminal, except trouble of the infrastructure, which is told in one line."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, InfrastructureError):
            record.exc_info = record.exc_text = None  # the text is what another handler made of it
            return True
        if isinstance(error, SeekerError):
            self._names.add(type(error).__name__)
            return False
        message = record.getMessage()
        return not ("Finished in state" in message and any(f"{name}: " in message for name in self._names))
