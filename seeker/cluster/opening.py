"""Opening a session for a service: its code, its setup, its application, and the lease that names them first."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeker.cluster import wire
from seeker.cluster.abandoned import ADVICE, keep_from_release
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.frontend import FrontendClient, RefusedError
from seeker.cluster.lease import Lease, plain_name
from seeker.cluster.loop import shared_loop
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.cluster.opened import OpenSession
from seeker.cluster.resources import Resources, resources_of
from seeker.cluster.session import CANCEL_NAME, CONTEXT_NAME, ApplicationPlan, SessionPlan, context_object
from seeker.cluster.session_watch import PARKED_NAME
from seeker.cluster.settings import ClusterSettings
from seeker.cluster.shipping import Code, code_of, ship
from seeker.errors import ClusterError, ConfigError

_log = logging.getLogger("seeker.cluster")

_REGISTRATION_TRIES = 3
_SHIPPING_TRIES, _SHIPPING_PAUSE_S = 10, 0.2


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a service is, whatever session it has.

    Example: ``ServicePlan("rollouts", "my.services:Rollout", {"seed": 0}, application, Resources(2), 1, 4, False)``.
    """

    name: str
    target: str
    config: dict[str, Any]
    application: ApplicationPlan
    resources: Resources
    executors: int
    max_executors: int
    gang: bool

    def check(self) -> None:
        if plain_name(self.name) != self.name or not self.name:
            text = "expected letters, digits, _ and -, at most 100: sessions and logs are named after it"
            raise ConfigError(f"service name {self.name!r}: {text}")
        module, _, class_name = self.target.partition(":")
        if not module or not class_name:
            raise ConfigError(f"service {self.name}: target {self.target!r} is not package.module:Class")
        if self.executors < 1:
            raise ConfigError(f"service {self.name}: executors is {self.executors}, expected 1 or more")
        if self.max_executors < self.executors:
            text = f"max_executors is {self.max_executors}, expected executors ({self.executors}) or more"
            raise ConfigError(f"service {self.name}: {text}")
        if self.application.release_s < 1:
            text = f"release_s is {self.application.release_s}, expected whole seconds, 1 or more"
            raise ConfigError(f"service {self.name}: {text}")
        for variable, value in self.application.environment:
            if not isinstance(value, str) or "=" in variable or "\0" in variable + value:  # pyright: ignore[reportUnnecessaryIsInstance]
                text = f"env {variable!r} is {value!r}, expected texts without a zero byte, the name without ="
                raise ConfigError(f"service {self.name}: {text}")
        try:
            json.dumps(self.config)
        except TypeError as error:
            raise ConfigError(f"config of service {self.name}: {error}; it travels as JSON") from error


@dataclass(slots=True)
class Opener:
    """Opens the sessions of one cluster. Used on any thread but the shared loop's."""

    settings: ClusterSettings
    frontend: FrontendClient
    objects: FlightObjects
    lease: Lease
    embedded: EmbeddedCluster | None
    applications: set[str] = field(default_factory=set[str])  # registered by us
    abandoned: list[str] = field(default_factory=list[str])  # sessions that could not be closed, and why
    _keeping: list[asyncio.Task[None]] = field(default_factory=list["asyncio.Task[None]"])
    _code: set[str] = field(default_factory=set[str])

    def open(self, service: ServicePlan) -> OpenSession:
        self._check_capacity(service)
        code = self._ship(service.target)
        application = service.application.name
        session_id = session_name(self.settings.run_id, service.name)
        plan = SessionPlan(
            session_id, application, service.resources, service.executors, service.max_executors, service.gang
        )
        self.lease.own(sessions=plan.id, applications=application, prefixes=plan.prefix)
        setup = self._setup(service, plan, code)
        context = self.objects.put(plan.prefix, context_object(setup), CONTEXT_NAME)
        self.objects.put(plan.prefix, pickle.dumps({}), PARKED_NAME)
        self._open_session(service.application, plan, context)
        ship(code, self.objects)  # another driver may have removed it before it could see our lease
        return OpenSession(plan, self.frontend, self.objects, self.embedded, service.application.release_s)

    def _ship(self, target: str) -> Code:
        """Again while somebody edits the tree: a digest must stand for what it says."""
        for _ in range(_SHIPPING_TRIES):
            try:
                code = code_of(target)
                self._code.add(code.digest)
                self.lease.own(code=code.digest)
                if ship(code, self.objects):
                    return code
            except FileNotFoundError as error:
                _log.info("a file of the code went away while it was read: %s", error)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the code of {target} cannot be sent to executors: {error}") from error
            time.sleep(_SHIPPING_PAUSE_S)
        raise ClusterError(f"the files of {target} and Seeker change all the time: let them rest, then start again")

    def code(self) -> tuple[str, ...]:
        """Digests of the archives that our services needed."""
        return tuple(sorted(self._code))

    def abandon(self, session: OpenSession, why: str) -> None:
        """Name and report a session that stays at the cluster."""
        text = f"session {session.plan.id} of application {session.plan.application} is abandoned: {why}; {ADVICE}"
        self.abandoned.append(text)
        _log.warning("%s", text)
        self.objects.prefixes.discard(session.plan.prefix)  # its executors still look for their cancel object
        self.lease.note(abandoned=session.plan.id)
        shared_loop().spawn(self._keep(session))

    async def _keep(self, session: OpenSession) -> None:
        self._keeping.append(shared_loop().task(keep_from_release(session)))

    async def close(self) -> None:
        """Leave the abandoned sessions alone."""
        for task in self._keeping:
            task.cancel()

    def _setup(self, service: ServicePlan, plan: SessionPlan, code: Code) -> dict[str, Any]:
        more_roots = (self.settings.code_root,) if self.settings.code_root else ()
        return {
            "name": service.name,
            "target": service.target,
            "config": service.config,
            "prefix": plan.prefix,
            "log_dir": self._log_dir(),
            "cache_endpoint": self.objects.endpoint,
            "cancel_key": f"{plan.prefix}/{CANCEL_NAME}",
            "parked_key": f"{plan.prefix}/{PARKED_NAME}",
            "lease_key": self.lease.key,
            "lease_s": self.lease.lease_s,
            "code": code.to_setup(self.objects.endpoint, more_roots),
            "resources": {
                "cpu": plan.resources.cpu,
                "memory_bytes": plan.resources.memory_bytes,
                "gpu": plan.resources.gpu,
            },
        }

    def _log_dir(self) -> str | None:
        """The services' logs go there where their node has the directory."""
        if self.embedded is not None:
            return self.embedded.log_dir
        if self.settings.log_dir is None:
            return None
        directory = Path(self.settings.log_dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def _open_session(self, application: ApplicationPlan, plan: SessionPlan, context: ObjectHandle) -> None:
        """Another run that shares the application may unregister it between our two requests: then once more."""
        for attempt in range(_REGISTRATION_TRIES):
            reply = self.frontend.request("RegisterApplication", application.to_wire())
            if reply.return_code != 0 and "already exists" not in reply.message:
                raise ClusterError(f"application {application.name} was not registered: {reply.message}")
            self.applications.add(application.name)
            try:
                self.frontend.request("OpenSession", plan.to_wire(context))
                return
            except RefusedError as error:
                if error.status != "NOT_FOUND" or attempt == _REGISTRATION_TRIES - 1:
                    raise

    def _check_capacity(self, service: ServicePlan) -> None:
        """The engine neither refuses nor reports a request that no node can meet."""
        nodes = self.frontend.request("ListNodes", wire.frontend.ListNodesRequest()).nodes
        capacities = [resources_of(each.status.capacity) for each in nodes]
        if sum(num_fitting(capacity, service.resources) for capacity in capacities) < service.executors:
            have = "; ".join(str(capacity) for capacity in capacities) or "no node"
            raise ClusterError(
                f"service {service.name} asks for {service.executors} executors of {service.resources}, the cluster "
                f"has {have}; lower the request, add nodes, or raise cluster.slots of the embedded cluster"
            )


def session_name(run_id: str, name: str) -> str:
    """Unique, names the run, fits the engine's rules for names and its 128 characters."""
    return f"{plain_name(f'{run_id}-{name}')}-{secrets.token_hex(4)}"


def num_fitting(capacity: Resources, each: Resources) -> int:
    counts = [capacity.cpu // max(each.cpu, 1), capacity.memory_bytes // max(each.memory_bytes, 1)]
    if each.gpu:
        counts.append(capacity.gpu // each.gpu)
    return min(counts)
