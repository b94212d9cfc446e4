"""Where Prefect keeps its files, and how it behaves under a command.

Without `PREFECT_API_URL` flows report to a server on this machine whose files live in `.prefect/` inside the project:
the one that `seeker serve` runs there, else one of their own. No cloud profile of the user is read and none is changed.
With `PREFECT_API_URL` the user's server, home and profile are used as they are.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from flows.server import await_server, start_server
from flows.serving.place import default_place
from flows.settings import server_settings
from seeker.errors import InfrastructureError, SeekerError

# Four task runs a step at INFO would bury the one line a step that the loop prints.
COMMAND_SETTINGS = {"PREFECT_LOGGING_LEVEL": "WARNING"}
FOREIGN = ("PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")

_private_urls: list[str] = []  # of the server that this process started


@contextmanager
def flow_environment(module: str) -> Iterator[ModuleType]:
    """Everything that a command needs around its flow; gives the flow's module.

    It is imported while the server comes up: together that takes 5 to 20 s, one after the other half as much again.
    """
    home = prepare_environment()
    if home is not None:
        print(
            "starting Prefect on this machine (some 10 seconds; PREFECT_API_URL names a server instead) …", flush=True
        )
        os.environ["PREFECT_API_URL"] = url = start_server(home / "server.log")
        _private_urls.append(url)
    _tell_known_errors_once()
    with _no_heartbeat():
        imported = importlib.import_module(module)
        if home is not None:
            await_server(os.environ["PREFECT_API_URL"], home / "server.log")
        yield imported


def prepare_environment(environ: MutableMapping[str, str] | None = None) -> Path | None:
    """Point Prefect at the project's private home; the home, or None where a server is there already.

    Values that the user set keep their value, except the home, profile and credentials of another server. Prefect reads
    them when it is imported, so this comes first.
    """
    environ = os.environ if environ is None else environ
    if environ.get("PREFECT_API_URL"):
        return None
    place = default_place()
    home, served = place.home, place.served()
    home.mkdir(parents=True, exist_ok=True)
    secret = environ.get("PREFECT_API_AUTH_STRING")
    for name in FOREIGN:
        environ.pop(name, None)
    for name, value in {**server_settings(), **COMMAND_SETTINGS}.items():
        environ.setdefault(name, value)
    environ["PREFECT_HOME"] = str(home)
    environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = str(home / "storage")
    if served is None:
        return home
    environ["PREFECT_API_URL"] = served.url
    if secret:
        environ["PREFECT_API_AUTH_STRING"] = secret
    return None


@contextmanager
def _no_heartbeat() -> Iterator[None]:
    """Without flow heartbeats inside: each costs a synchronous flow about one second at its end.

    They matter on a server that watches for dead runs only, so a user's server keeps its setting. Prefect 3.9
    accepts None from Python but not from the environment.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    private = os.environ.get("PREFECT_API_URL") in _private_urls
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if private else {}):
        yield


def _tell_known_errors_once() -> None:
    """Keep what the command itself says at its end, or what says nothing, out of the terminal.

    Prefect prints every exception that passes through a task or flow with its traceback, several times; the server's
    log keeps them. The filter stays: Prefect's last words come when the process ends.
    """
    from prefect.logging.configuration import setup_logging

    setup_logging()  # else the first flow run does it, and there is no handler yet to put the filter on
    for handler in logging.getLogger().handlers:  # Prefect prints through the root logger
        handler.addFilter(KnownErrors())


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
        if message.startswith("Still processing items"):  # events that are being sent while the process ends
            return False
        return not ("Finished in state" in message and any(f"{name}: " in message for name in self._names))
