"""What one service asks of the cluster: an application for its environment, a session for its run.

Opened below `flamepy.runner.Runner`, with a `RunnerContext` of our own whose object is the starter class.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pickle
from dataclasses import dataclass
from importlib import resources
from typing import Any

from seeker.cluster import wire
from seeker.cluster.objects import ObjectHandle
from seeker.cluster.resources import Resources
from seeker.cluster.starter import loader
from seeker.cluster.untyped import bson

STARTER_MODULES = (
    *("running", "store", "channel", "processes", "folder", "log", "gpus", "code", "gang", "node"),
    *("process", "watch", "host", "starter"),
)
RUNNER_ARGUMENTS = ("-m", "flamepy.runner.runpy")
CONTEXT_NAME, CANCEL_NAME = "runner-context", "cancel"

_CLOUDPICKLE_PREFIX = b"FLM\x00"  # how the SDK marks a pickled payload in the object cache
_TYPES = "__import__('flamepy.runner.types', fromlist=['types'])"
_STARTER = "(lambda space: (exec(loader, space), space['load'](sources).configured(setup))[1])({})"
_RUNNER_CONTEXT = f"{_TYPES}.RunnerContext(execution_object={_STARTER}, autoscale=False, warmup=1)"
_RUNNER_REQUEST = f"{_TYPES}.RunnerRequest(method='call', args=(request,))"


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    """The environment of executors. Two services with equal plans share an application.

    Example: ``ApplicationPlan("/venv/bin/python", (("OMP_NUM_THREADS", "1"),), 120)``.
    """

    python: str
    environment: tuple[tuple[str, str], ...]
    release_s: int

    @property
    def name(self) -> str:
        text = json.dumps([self.python, RUNNER_ARGUMENTS, self.environment, self.release_s])
        return f"seeker-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_wire(self) -> Any:
        spec = wire.types.ApplicationSpec(
            shim=0,
            description="Seeker service executors",
            command=self.python,
            arguments=RUNNER_ARGUMENTS,
            environments=[wire.types.Environment(name=key, value=value) for key, value in self.environment],
            delay_release=self.release_s,
        )
        return wire.frontend.RegisterApplicationRequest(name=self.name, application=spec)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A service's session: from `executors` to `max_executors` of them; all or nothing with `gang`."""

    id: str
    application: str
    resources: Resources
    executors: int
    max_executors: int
    gang: bool

    @property
    def prefix(self) -> str:
        return f"{self.application}/{self.id}"

    def to_wire(self, context: ObjectHandle) -> Any:
        resreq = wire.types.ResourceRequirement(
            cpu=self.resources.cpu, memory=self.resources.memory_bytes, gpu=self.resources.gpu
        )
        reference = {"endpoint": context.endpoint, "key": context.key, "version": context.version}
        spec = wire.types.SessionSpec(
            application=self.application,
            common_data=bson.encode(reference),
            min_instances=self.executors,
            max_instances=self.max_executors,
            batch_size=self.executors if self.gang else 1,
            resreq=resreq,
        )
        return wire.frontend.OpenSessionRequest(session_id=self.id, session=spec)


class Expression:
    """Pickles as a Python expression that is evaluated where it is unpickled.

    So the SDK's types are named without importing the SDK here (half a second), and code travels as source.
    """

    def __init__(self, text: str, **names: Any) -> None:
        self._text = text
        self._names = names

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
        return eval, (self._text, self._names)


def starter_sources() -> dict[str, str]:
    """Name and source of each module that the starter is made of, in the order in which they need each other."""
    names = ("archive", *(f"starter.{name}" for name in STARTER_MODULES))
    package = resources.files("seeker.cluster")
    return {name: package.joinpath(name.replace(".", "/") + ".py").read_text("utf-8") for name in names}


def runner_context(setup: dict[str, Any]) -> bytes:
    """The session's common data object: a `RunnerContext` that holds the starter class, by its source."""
    context = Expression(_RUNNER_CONTEXT, loader=inspect.getsource(loader), sources=starter_sources(), setup=setup)
    return _CLOUDPICKLE_PREFIX + pickle.dumps(pickle.dumps(context))


def pickle_request(request: dict[str, Any]) -> bytes:
    """The input of a call: the starter's one method, its request inside a dict so that it is not taken for a ref."""
    return pickle.dumps(Expression(_RUNNER_REQUEST, request=request))


def unpickle_reply(data: memoryview) -> dict[str, Any]:
    """The starter's reply, as the SDK put it into the object cache."""
    payload = data[len(_CLOUDPICKLE_PREFIX) :] if bytes(data[:4]) == _CLOUDPICKLE_PREFIX else data
    return pickle.loads(payload)
