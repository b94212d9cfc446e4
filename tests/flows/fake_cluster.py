"""A scripted cluster: services run in this process, one call at a time, and fail when the script says so."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster.calls import Call
from seeker.cluster.objects import GangMembership, ServiceContext
from seeker.errors import CallError, GangLostError, InfrastructureError
from tests.fakes import MemoryObjects

# Called before each call with (method, number of this method's call, arguments); may raise what the call fails with.
Script = Callable[[str, int, tuple[Any, ...], Mapping[str, Any]], None]


def ended_call(label: str, value: Any = None, error: BaseException | None = None) -> Call:
    """A call that ended when it was made."""
    call = Call(label, 0.0)
    if error is None:
        call.future.set_result(value)
    else:
        call.future.set_exception(error)
    return call


@dataclass
class FakeService:
    """Behaves like the client's `Service`; arguments and results go through pickle as on a real channel."""

    name: str
    prefix: str
    make: Callable[[int, GangMembership | None], Any]
    executors: int
    script: Script
    calls: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = field(default_factory=list)
    closed: bool = False
    formed: int = 0
    _instances: dict[int, Any] = field(default_factory=dict)

    def call(
        self, method: str, *args: Any, deadline_s: float | None = None, idempotent: bool = False, **kwargs: Any
    ) -> Call:
        number = sum(name == method for name, _, _ in self.calls)
        self.calls.append((method, args, kwargs))
        label = f"{self.name}.{method}#{number}"
        try:
            self.script(method, number, args, kwargs)
            target = self._instance(len(self.calls) % self.executors)
            args, kwargs = pickle.loads(pickle.dumps((args, kwargs)))
            return ended_call(label, pickle.loads(pickle.dumps(getattr(target, method)(*args, **kwargs))))
        except InfrastructureError as error:
            return ended_call(label, error=error)
        except Exception as error:
            return ended_call(label, error=CallError(f"{label}: {error}", type(error).__name__, ""))

    def form(self, deadline_s: float) -> FakeGang:
        """All executors as a gang of the next generation."""
        self.formed += 1
        return FakeGang(self, f"generation-{self.formed}")

    def lose_executors(self) -> None:
        """Forget what the executors hold, as if all had been killed."""
        self._instances.clear()

    def close(self) -> None:
        self.closed = True

    def _instance(self, executor: int) -> Any:
        if executor not in self._instances:
            self._instances[executor] = self.make(executor, None)
        return self._instances[executor]


class FakeGang:
    """Behaves like the client's `Gang`; each rank runs in a thread of its own, since ranks wait for one another.

    The script is asked once for each call of all ranks; what it raises is a loss of the whole gang.
    """

    def __init__(self, service: FakeService, generation: str) -> None:
        self.world = service.executors
        self.generation = generation
        self.hosts = ("here",) * self.world
        self.executors = tuple(f"executor-{rank}" for rank in range(self.world))
        self.ended: GangLostError | None = None
        self._service = service
        self._ranks = [service.make(rank, self._membership(rank)) for rank in range(self.world)]

    def run(self, method: str, *args: Any, deadline_s: float, **kwargs: Any) -> list[Any]:
        calls = self.call_all(method, *args, deadline_s=deadline_s, **kwargs)
        errors = [error for call in calls if (error := call.error()) is not None]
        if errors and (len(errors) < self.world or not isinstance(errors[0], CallError)):
            self.end(str(errors[0]))
        return [call.result() for call in calls]

    def call_all(self, method: str, *args: Any, deadline_s: float, **kwargs: Any) -> list[Call]:
        if self.ended is not None:
            raise self.ended
        number = sum(name == method for name, _, _ in self._service.calls)
        self._service.calls.append((method, args, kwargs))
        labels = [f"{self._service.name}.{method}#{number}.{rank}" for rank in range(self.world)]
        try:
            self._service.script(method, number, args, kwargs)
        except InfrastructureError as error:
            return [ended_call(label, error=error) for label in labels]
        except Exception as error:
            return [ended_call(label, error=CallError(f"{label}: {error}", type(error).__name__)) for label in labels]
        with ThreadPoolExecutor(self.world) as threads:
            begun = [
                threads.submit(self._run_rank, rank, label, method, args, kwargs)
                for rank, label in zip(self._ranks, labels, strict=True)
            ]
        calls = [each.result() for each in begun]
        for rank, call in enumerate(calls):
            call.rank = rank
        return calls

    def end(self, reason: str) -> None:
        self.ended = self.ended or GangLostError(f"{self.generation} was ended: {reason}")

    def _membership(self, rank: int) -> GangMembership:
        return GangMembership(self.generation, rank, self.world, self.executors, self.hosts)

    def _run_rank(self, target: Any, label: str, method: str, args: Any, kwargs: Any) -> Call:
        try:
            args, kwargs = pickle.loads(pickle.dumps((args, kwargs)))
            return ended_call(label, pickle.loads(pickle.dumps(getattr(target, method)(*args, **kwargs))))
        except Exception as error:
            return ended_call(label, error=CallError(f"{label}: {error}", type(error).__name__, ""))


@dataclass
class FakeCluster:
    """Behaves like the client's `Cluster`."""

    script: Script = lambda method, number, args, kwargs: None
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    services: dict[str, FakeService] = field(default_factory=dict)

    def start(self, name: str, target: str, config: Mapping[str, Any], executors: int = 1, **_: Any) -> FakeService:
        module, _, attribute = target.partition(":")
        service_class = getattr(importlib.import_module(module), attribute)
        prefix = f"app/{name}"

        def make(executor: int, gang: GangMembership | None) -> Any:
            context = ServiceContext(self.objects, prefix, f"executor-{executor}", 1, gang)
            return service_class(dict(config), context)

        self.services[name] = FakeService(name, prefix, make, executors, self.script)
        return self.services[name]

    def describe(self) -> dict[str, Any]:
        return {"kind": "fake"}

    def close(self) -> None:
        pass
