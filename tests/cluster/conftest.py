"""One embedded cluster for the tests of this package, and helpers that look at processes and objects."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.flight as flight
import pytest

if TYPE_CHECKING:  # the conformance suite below this folder runs where nothing of Seeker is wanted
    from seeker.cluster.client import Cluster


@pytest.fixture(autouse=True)
def _no_named_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start their own cluster, whatever the shell names."""
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from seeker.cluster.client import ClusterSettings, open_cluster

    saved = {name: os.environ.pop(name, None) for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT")}
    by_address = bool(os.environ.get("SEEKER_BY_ADDRESS"))
    settings = ClusterSettings(log_dir=str(tmp_path_factory.mktemp("logs")), run_id="tests", grpc_only=by_address)
    with open_cluster(settings) as opened, _by_address(opened) as reached:
        yield reached
    os.environ.update({name: value for name, value in saved.items() if value is not None})


@contextmanager
def _by_address(embedded: Cluster) -> Iterator[Cluster]:
    """The cluster; with SEEKER_BY_ADDRESS set, a client that reaches it as it would a real one, by gRPC alone."""
    from seeker.cluster.client import open_cluster

    if not os.environ.get("SEEKER_BY_ADDRESS"):
        yield embedded
        return
    named = {"endpoint": embedded.endpoint, "cache_endpoint": embedded.describe()["cache_endpoint"]}
    with open_cluster(replace(embedded.settings, **named)) as reached:
        yield reached


def name_no_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in `folder`, at home there, with no cluster named by the environment."""
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT", "SEEKER_CLUSTER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)


def object_keys(cache_endpoint: str, prefix: str = "") -> list[str]:
    """Keys of all objects in a cache."""
    client = flight.FlightClient(cache_endpoint)
    keys = [info.descriptor.path[0].decode() for info in client.list_flights()]
    client.close()
    return sorted(key for key in keys if key.startswith(prefix))


def is_running(pid: int) -> bool:
    """Zombies do not count: they are dead, and their parent's to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> set[int]:
    """All processes under `pid`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo.extend(new)
    return found


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Seconds until `condition` holds; fails the test past the deadline."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < deadline_s, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start
