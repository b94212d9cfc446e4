"""What one service asks of the cluster: an application for its environment, a session for its run.

Opened below `flamepy.runner.Runner`, with a `RunnerContext` of our own whose object is the starter class.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import pickle
from dataclasses import dataclass
from typing import Any

from seeker.cluster import starter, wire
from seeker.cluster.objects import ObjectHandle
from seeker.cluster.resources import Resources
from seeker.cluster.untyped import bson, runner_types

RUNNER_ARGUMENTS = ("-m", "flamepy.runner.runpy")
CONTEXT_NAME, CANCEL_NAME = "runner-context", "cancel"

_CLOUDPICKLE_PREFIX = b"FLM\x00"  # how the SDK marks a pickled payload in the object cache
_CLASS_FROM_SOURCE = (
    "(lambda space: (exec(source, space), space['configured'](setup))[1])({'__name__': 'seeker_starter'})"
)


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
    """A service's session: always `executors` of them; all or nothing with `gang`."""

    id: str
    application: str
    resources: Resources
    executors: int
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
            max_instances=self.executors,
            batch_size=self.executors if self.gang else 1,
            resreq=resreq,
        )
        return wire.frontend.OpenSessionRequest(session_id=self.id, session=spec)


def runner_context(setup: dict[str, Any]) -> bytes:
    """The session's common data object: a `RunnerContext` holding the starter class, by its source."""
    context = runner_types().RunnerContext(execution_object=starter.Starter, autoscale=False, warmup=1)
    file = io.BytesIO()
    _StarterPickler(file, setup).dump(context)
    return _CLOUDPICKLE_PREFIX + pickle.dumps(file.getvalue())


class _StarterPickler(pickle.Pickler):
    """Pickles the starter class as its source, which any Python version can run; all else as usual."""

    def __init__(self, file: io.BytesIO, setup: dict[str, Any]) -> None:
        super().__init__(file)
        self._setup = setup

    def reducer_override(self, obj: Any) -> Any:
        if obj is starter.Starter:
            source = inspect.getsource(starter)
            return eval, (_CLASS_FROM_SOURCE, {"source": source, "setup": self._setup})
        return NotImplemented


def pickle_request(method: str, arguments: bytes, seconds: float, end: float | None) -> bytes:
    """The input of a call: the starter's one method, its request inside a tuple so that it is not taken for a ref."""
    request = (method, arguments, seconds, end)
    return pickle.dumps(runner_types().RunnerRequest(method="call", args=(request,)))


def unpickle_reply(data: memoryview) -> dict[str, Any]:
    """The starter's reply, as the SDK put it into the object cache."""
    payload = data[len(_CLOUDPICKLE_PREFIX) :] if bytes(data[:4]) == _CLOUDPICKLE_PREFIX else data
    return pickle.loads(payload)
