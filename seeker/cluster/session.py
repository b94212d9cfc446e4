"""What one service asks of the cluster: an application for its environment, a session for its run.

Opened below `flamepy.runner.Runner`: the application's command is a program of our own (`starter/boot.py`), and the
session's common data, which every list of sessions carries, only names the object with the starter's sources and setup.
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
from seeker.cluster.starter import boot
from seeker.cluster.starter.boot import INLINE_REPLY
from seeker.errors import ClusterError

STARTER_MODULES = (
    *("running", "store", "channel", "processes", "folder", "log", "gpus", "code", "gang", "node"),
    *("process", "watch", "host", "starter"),
)
ARGUMENTS = ("-c", inspect.getsource(boot))
CONTEXT_NAME, CANCEL_NAME = "context", "cancel"


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
        text = json.dumps([self.python, ARGUMENTS, self.environment, self.release_s])
        return f"seeker-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_wire(self) -> Any:
        spec = wire.types.ApplicationSpec(
            shim=0,
            description="Seeker service executors",
            command=self.python,
            arguments=ARGUMENTS,
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
        reference = json.dumps({"endpoint": context.endpoint, "key": context.key})
        spec = wire.types.SessionSpec(
            application=self.application,
            common_data=reference.encode(),
            min_instances=self.executors,
            max_instances=self.max_executors,
            batch_size=self.executors if self.gang else 1,
            resreq=resreq,
        )
        return wire.frontend.OpenSessionRequest(session_id=self.id, session=spec)


def starter_sources() -> dict[str, str]:
    """Name and source of each module that the starter is made of, in the order in which they need each other."""
    names = ("archive", *(f"starter.{name}" for name in STARTER_MODULES))
    package = resources.files("seeker.cluster")
    return {name: package.joinpath(name.replace(".", "/") + ".py").read_text("utf-8") for name in names}


def context_object(setup: dict[str, Any]) -> bytes:
    """What an executor fetches when it enters the session: the starter's sources and its setup."""
    return json.dumps({"sources": starter_sources(), "setup": setup}).encode()


def pickle_request(request: dict[str, Any]) -> bytes:
    """The input of a call: the argument of the starter's one method."""
    return pickle.dumps(request)


def unpickle_reply(output: bytes) -> dict[str, Any]:
    """The starter's reply, of a task's output."""
    if not output.startswith(INLINE_REPLY):
        raise ClusterError(f"a task's output of {len(output)} bytes is no reply of a starter")
    return pickle.loads(memoryview(output)[len(INLINE_REPLY) :])
