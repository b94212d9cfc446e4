"""The trainers as the tasks use them: one gang, formed at first use and formed again when a member was lost.

Every call is addressed by step, so doing it again on a new generation is always right: the trainers restore the newest
checkpoint and replay the stored batches together.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from seeker.cluster.client import Call, Service, gather
from seeker.cluster.gang import Gang
from seeker.config import ClusterConfig
from seeker.errors import ClusterError, DeadlineError, GangLostError, InfrastructureError, LostStepError
from seeker.runs import EventLog, Json
from tasks.calls import GRACE_S, is_infrastructure

MAX_TRIES = 3  # of one call
LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those that systems give to outgoing connections
PORT_TRIES = 100

Value = TypeVar("Value")


class Trainers:
    """All ranks as one. `run` gives the values of all ranks, in their order.

    Example: ``trainers.run("update", 3, handle)`` gives ``[{"metrics": {...}}, {"metrics": {...}}]`` with two ranks.
    """

    def __init__(self, service: Service, config: ClusterConfig, events: EventLog) -> None:
        self.prefix = service.prefix
        self._service = service
        self._config = config
        self._events = events
        self._gang: Gang | None = None

    def run(self, method: str, *args: Any) -> list[Any]:
        """Call all ranks and wait; when one is lost, form the gang again and do it again, a few times."""

        def work(gang: Gang) -> list[Any]:
            return gang.run(method, *args, deadline_s=self._config.update_deadline_s)

        return self._persist(method, work)

    def begin(self, method: str, *args: Any) -> PendingWork:
        """Call all ranks without waiting."""

        def work(gang: Gang) -> list[Call]:
            return gang.call_all(method, *args, deadline_s=self._config.update_deadline_s)

        calls = self._persist(method, work)
        assert self._gang is not None
        return PendingWork(self, self._gang, calls, method, args)

    def close(self) -> None:
        self._service.close()

    def finish(self, pending: PendingWork) -> list[Any]:
        """The values of calls that were begun; what was lost with its gang is done again."""
        try:
            for call in gather(pending.calls, self._config.update_deadline_s + GRACE_S):
                call.result()
            return [call.result() for call in sorted(pending.calls, key=lambda call: call.rank)]
        except InfrastructureError as error:
            self._lose(pending.method, 1, error, pending.gang)
        return self.run(pending.method, *pending.args)

    def _persist(self, method: str, work: Callable[[Gang], Value]) -> Value:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return work(self._joined())
            except InfrastructureError as error:
                self._lose(method, attempt, error, self._gang)
        raise AssertionError("the last loss is raised")

    def _joined(self) -> Gang:
        """The gang with its ranks joined."""
        if self._gang is not None and self._gang.ended is None:
            return self._gang
        try:
            self._gang = self._service.form(self._config.start_deadline_s)
        except DeadlineError as error:
            raise LostStepError(
                f"the {self._config.trainers} trainers could not be started: {error}. Make room or lower "
                "cluster.trainers, and start the run again: it goes on from its last commit"
            ) from error
        self._gang.run("join", rendezvous(self._gang.hosts, self._config), deadline_s=self._config.start_deadline_s)
        return self._gang

    def _lose(self, method: str, attempt: int, error: InfrastructureError, gang: Gang | None) -> None:
        """Give the gang up and record why; raises where trying again cannot help or was tried enough."""
        if isinstance(error, LostStepError) or not is_infrastructure(error):
            raise error
        if gang is not None:
            gang.end(str(error)[:200])
        member = {"rank": error.rank, "executor": error.executor} if isinstance(error, GangLostError) else {}
        self._events.record("trainers_lost", method=method, attempt=attempt, error=str(error)[:500], **member)
        if attempt == MAX_TRIES:
            raise LostStepError(
                f"the trainers were lost {attempt} times in {method!r}, the last time: {error}. events.jsonl in the "
                "run directory holds the causes. Mend them and start the run again: it goes on from its last commit"
            ) from error
        time.sleep(self._config.retry_pause_s * attempt)


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Calls of all ranks under way."""

    trainers: Trainers
    gang: Gang
    calls: list[Call]
    method: str
    args: tuple[Any, ...]

    def result(self) -> list[Any]:
        """The values in the order of the ranks."""
        return self.trainers.finish(self)


def rendezvous(hosts: Sequence[str], config: ClusterConfig) -> Json:
    """Where the ranks meet: on the loopback device when all are on one machine, else on rank 0's.

    Example: ``{"address": "127.0.0.1", "port": 23011, "join_deadline_s": 114.0, "sum_deadline_s": 120.0}``.
    """
    return {
        "address": LOOPBACK if len(set(hosts)) == 1 else hosts[0],
        "port": choose_port(),
        "join_deadline_s": 0.95 * config.start_deadline_s,  # the ranks' own error comes before the call's
        "sum_deadline_s": config.rank_deadline_s,
    }


def choose_port(ports: range = PORTS) -> int:
    """A port that is free here, which is where rank 0 is on one machine; elsewhere its being taken is noticed."""
    for port in random.sample(ports, min(len(ports), PORT_TRIES)):
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError:
            continue
        return port
    raise ClusterError(f"no port from {ports.start} to {ports.stop} is free for the trainers' rendezvous")
