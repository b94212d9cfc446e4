"""Where Prefect keeps its files, and how it behaves under a command.

Without `PREFECT_API_URL` flows report to a server on this machine whose files live in `.prefect/` inside the project:
the one that `seeker serve` runs there, else one of their own. No cloud profile of the user is read and none is changed.
With `PREFECT_API_URL` the user's server, home and profile are used as they are.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from flows.server import await_server, start_server
from flows.serving.place import default_place
from flows.settings import server_settings
from flows.told_once import telling_errors_once

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
    with telling_errors_once(), _no_heartbeat():
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
