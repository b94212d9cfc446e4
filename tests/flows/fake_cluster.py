"""A scripted cluster: services run in this process, one call at a time, and fail when the script says so."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster.calls import Call
from seeker.cluster.objects import ServiceContext
from seeker.errors import CallError, InfrastructureError
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
    make: Callable[[int], Any]
    executors: int
    script: Script
    calls: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = field(default_factory=list)
    closed: bool = False
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

    def lose_executors(self) -> None:
        """Forget what the executors hold, as if all had been killed."""
        self._instances.clear()

    def close(self) -> None:
        self.closed = True

    def _instance(self, executor: int) -> Any:
        if executor not in self._instances:
            self._instances[executor] = self.make(executor)
        return self._instances[executor]


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

        def make(executor: int) -> Any:
            return service_class(dict(config), ServiceContext(self.objects, prefix, f"executor-{executor}", 1))

        self.services[name] = FakeService(name, prefix, make, executors, self.script)
        return self.services[name]

    def describe(self) -> dict[str, Any]:
        return {"kind": "fake"}

    def close(self) -> None:
        pass
