"""Starters driven in this process, each as if it were an executor of its own, with a real object cache beside them."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache as cache_once
from pathlib import Path
from typing import Any

import pytest

from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.cluster.shipping import code_of, ship
from seeker.cluster.starter.starter import configured

ROOT = str(Path(__file__).resolve().parents[3])
SERVICE = "tests.cluster.starter.services:Service"


@pytest.fixture(scope="package")
def cache() -> Iterator[ObjectCache]:
    server = ObjectCache()
    threading.Thread(target=server.serve, daemon=True).start()
    yield server
    server.shutdown()


class Objects:
    """The driver's hand: the objects that it puts for a session, by their names."""

    def __init__(self, endpoint: str, prefix: str) -> None:
        self.prefix = prefix
        self._store = FlightObjects(endpoint)

    def put(self, name: str, value: Any) -> None:
        self._store.put(self.prefix, pickle.dumps(value), name)

    def delete(self, name: str) -> None:
        self._store.delete(f"{self.prefix}/{name}")

    def cancel(self, everything: bool = False, calls: tuple[str, ...] = (), generations: tuple[str, ...] = ()) -> None:
        self.put("cancel", {"all": everything, "calls": list(calls), "generations": list(generations)})

    def patches(self, name: str) -> list[Any]:
        handle = ObjectHandle(f"{self.prefix}/{name}", 0, self._store.endpoint)
        return [pickle.loads(data) for _, data in self._store.read(handle).patches]


class Executor:
    """A starter, and calls on it. Its threads live as long as it, as Flame's do."""

    def __init__(self, name: str, setup: dict[str, Any]) -> None:
        self.name = name
        self.kind = configured(setup, name)
        self._starter = self.kind()
        self._threads = ThreadPoolExecutor(4)

    def begin(self, method: str, *args: Any, seconds: float = 30.0, **fields: Any) -> Future[dict[str, Any]]:
        request = {"method": method, "arguments": pickle.dumps((args, {})), "seconds": seconds, **fields}
        return self._threads.submit(self._starter.call, request)

    def call(self, method: str, *args: Any, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
        """The reply, with its value unpickled."""
        reply = self.begin(method, *args, seconds=seconds, **fields).result(timeout=seconds + 20)
        return {**reply, "value": pickle.loads(reply["value"])} if "value" in reply else reply

    def value(self, method: str, *args: Any, **fields: Any) -> Any:
        reply = self.call(method, *args, **fields)
        assert reply["kind"] == "value", "\n".join(f"{name}: {value}" for name, value in reply.items())
        return reply["value"]

    @property
    def pid(self) -> int:
        """Of its service process."""
        return self.value("@about")["service_pid"]

    def send(self, request: Any) -> Any:
        return self._threads.submit(self._starter.call, request).result(timeout=60)

    def end(self) -> None:
        if self.kind.host is not None:
            self.kind.host.end()
        self._threads.shutdown()


Make = Callable[..., Executor]


class Session:
    """Executors of one session, and its driver's objects."""

    def __init__(self, cache_endpoint: str, name: str, folder: Path) -> None:
        prefix = f"app/{name}"
        self.objects = Objects(cache_endpoint, prefix)
        self.executors: list[Executor] = []
        self.setup: dict[str, Any] = {
            "name": "probe",
            "target": SERVICE,
            "config": {"who": "probe"},
            "prefix": prefix,
            "log_dir": str(folder),
            "cache_endpoint": cache_endpoint,
            "cancel_key": f"{prefix}/cancel",
            "parked_key": f"{prefix}/parked",
            "lease_key": None,
            "lease_s": 30.0,
            "resources": {"cpu": 1, "memory_bytes": 2**20, "gpu": 0},
            "code": _shipped(cache_endpoint),
        }

    def executor(self, name: str = "ex-0", **setup: Any) -> Executor:
        made = Executor(name, {**self.setup, **setup})
        self.executors.append(made)
        return made

    def end(self) -> None:
        for executor in self.executors:
            executor.end()


@cache_once
def _shipped(cache_endpoint: str) -> dict[str, Any]:
    """This tree, and its archive for when somebody edits it while the tests run."""
    code = code_of(SERVICE)
    while not ship(code, FlightObjects(cache_endpoint)):  # edited between the two
        code = code_of(SERVICE)
    return code.to_setup(cache_endpoint, ())


_numbers = itertools.count()


def make_session(cache: ObjectCache, folder: Path) -> Session:
    return Session(cache.endpoint, f"s{next(_numbers)}", folder)


@pytest.fixture
def session(cache: ObjectCache, tmp_path: Path) -> Iterator[Session]:
    made = make_session(cache, tmp_path)
    yield made
    made.end()
