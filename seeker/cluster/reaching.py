"""Whether the named cluster answers, asked before anything is prepared for it; and what to do when it does not."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from seeker.cluster import shared
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.named import Address
from seeker.cluster.objects import FlightObjects
from seeker.cluster.settings import ENVIRONMENT, SETTINGS, ClusterSettings
from seeker.errors import ClusterError, DeadlineError, UnreachableError
from seeker.program import program

UNSET = "unset FLAME_ENDPOINT FLAME_CACHE_ENDPOINT"


def check_reachable(settings: ClusterSettings) -> None:
    """Raise `UnreachableError` where a cluster is named and does not answer. The embedded one is not started yet."""
    address = settings.address()
    if address is not None:
        with reached(address, settings.connect_deadline_s):
            pass


@contextmanager
def reached(address: Address, deadline_s: float) -> Generator[tuple[FrontendClient, FlightObjects]]:
    """Clients of the cluster and of its object cache, which both have answered."""
    try:
        frontend = FrontendClient(address.endpoint, address.ca_file, deadline_s)
    except DeadlineError as error:
        raise _unreachable(address, f"no cluster answered at {address.endpoint} within {deadline_s:g} s") from error
    objects = FlightObjects(address.cache_endpoint, address.cache_ca_file)
    try:
        _await_cache(address, objects, deadline_s)
        yield frontend, objects
    finally:
        objects.close()
        frontend.close()


def _await_cache(address: Address, objects: FlightObjects, deadline_s: float) -> None:
    try:
        objects.wait_ready(deadline_s)
    except ClusterError as error:
        text = f"the cluster at {address.endpoint} answers, its object cache at {address.cache_endpoint} does not"
        raise _unreachable(address, f"{text} (waited {deadline_s:g} s: {error.__cause__ or error})") from error


def _unreachable(address: Address, text: str) -> UnreachableError:
    what, remedy = f"{text}; it is named by {address.source}", remedy_of(address)
    return UnreachableError(f"{what}: {remedy}", what, remedy)


def remedy_of(address: Address) -> str:
    """What to type when nobody answers at `address`."""
    if address.source == ENVIRONMENT:
        return _remedy_of_environment(address)
    if address.source == SETTINGS:
        return "start one there, or name another by --set cluster.endpoint=… (with nothing after = for none)"
    if address.source.endswith(shared.STATE_NAME):
        return f"end it by `{program()} cluster stop` and start it again (its {shared.LOG_NAME} may say why)"
    return "start one there, or name another"


def _remedy_of_environment(address: Address) -> str:
    """A shell keeps the exports of a shared cluster that was stopped, and perhaps started again elsewhere."""
    directory = Path(shared.DEFAULT_DIRECTORY)
    running = shared.look(directory)
    start = f'eval "$({program()} cluster start --env)"'
    if running is None:
        return f"none is running in {directory} either; `{UNSET}` for the embedded one, or `{start}` to start one"
    if running.address.endpoint == address.endpoint:
        return (
            f"that is the cluster of {directory} (process {running.pid}), whose {shared.LOG_NAME} may say why; "
            f"`{program()} cluster stop` ends it"
        )
    return f"the one of {directory} runs at {running.address.endpoint}; `{start}` names it, `{UNSET}` the embedded one"
