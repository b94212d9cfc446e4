"""The load of the random kills: calls of every kind in flight at once, and the account of what became of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster.client import Call, Cluster, Service
from seeker.errors import ClusterError, GangLostError

SMALL = "mem=64m"
ECHO, MEMBER = "tests.cluster.services:Echo", "tests.cluster.gang_services:Member"
DEADLINE_S = 60.0
NEWS_S = 5.0  # how much later than its deadline a call may end, on a machine that does other things too


@dataclass
class Load:
    """A fixed service, an elastic one and a gang, each with work for one round at a time."""

    cluster: Cluster
    release_s: int = 120
    outcomes: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    latest_s: float = 0.0  # the longest that any call took

    def __post_init__(self) -> None:
        start, release_s = self.cluster.start, self.release_s
        self._fixed = start("fixed", ECHO, {}, SMALL, executors=2, release_s=release_s)
        self._elastic = start("elastic", ECHO, {}, SMALL, release_s=release_s, elastic=True, max_executors=3)
        self._gang = start("gang", MEMBER, {}, SMALL, executors=2, release_s=release_s, gang=True)

    def round(self) -> Round:
        return Round(self, self._fixed, self._elastic, self._gang)


class Round:
    """Submitted when it is made; `finish` waits for all of it and says what does not add up."""

    def __init__(self, load: Load, fixed: Service, elastic: Service, gang: Service) -> None:
        self._load = load
        self._started = time.monotonic()
        self._faults: list[str] = []
        self._gang = gang
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._work_as_gang, self._use_objects)]
        self._again = [(fixed.call("sleep", 0.1, deadline_s=DEADLINE_S, idempotent=True), 0.1) for _ in range(5)]
        self._again += [(elastic.call("sleep", 0.1, deadline_s=DEADLINE_S, idempotent=True), 0.1) for _ in range(5)]
        self._once = [(fixed.call("sleep", seconds, deadline_s=DEADLINE_S), seconds) for seconds in (0.0, 0.1, 0.2)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[str]:
        for call, value in self._again:
            self._account(call, value, must_answer=True)
        for call, value in self._once:
            self._account(call, value, must_answer=False)
        for thread in self._threads:
            thread.join(4 * DEADLINE_S)
            if thread.is_alive():
                self._faults.append(f"{thread} hangs")
        return self._faults

    def _account(self, call: Call, value: Any, must_answer: bool) -> None:
        try:
            answer = call.result(DEADLINE_S + NEWS_S)
            outcome = "value"
            if answer != value:
                self._faults.append(f"{call.label} answered {answer!r}, not {value!r}")
        except ClusterError as error:
            outcome = type(error).__name__
            if must_answer or not call.done():
                self._faults.append(f"{call.label}: {type(error).__name__}: {error}")
        self._note(outcome)
        self._load.retries += call.num_retries

    def _note(self, outcome: str) -> None:
        self._load.outcomes[outcome] += 1
        self._load.latest_s = max(self._load.latest_s, time.monotonic() - self._started)

    def _work_as_gang(self) -> None:
        """Two turns; a gang that is lost is formed again at once, as often as a round has kills."""
        losses: list[str] = []
        for _ in range(3):
            try:
                gang = self._gang.form(deadline_s=DEADLINE_S)
                for _ in range(2):
                    told = gang.run("about", deadline_s=DEADLINE_S)
                    if [each["rank"] for each in told] != [0, 1] or {each["generation"] for each in told} != {
                        gang.generation
                    }:
                        self._faults.append(f"a stranger's answer: {told}")
                    gang.run("pause", 0.2, deadline_s=DEADLINE_S)
                gang.end("the round is over")
            except GangLostError as error:
                self._note("GangLostError")
                losses.append(f"{time.monotonic() - self._started:.1f} s: {error}"[:400])
                continue
            except Exception as error:
                self._faults.append(f"gang: {type(error).__name__}: {error}")
            return
        self._faults.append("\n".join(["the gang was lost more often than somebody was killed", *losses]))

    def _use_objects(self) -> None:
        """The cache is the cluster's own process, which nobody kills here: nothing may fail."""
        try:
            objects = self._load.cluster.objects
            handle = objects.put("load/objects", b"x" * 100_000)
            for number in range(20):
                objects.append(handle, bytes([number]) * 100)
                time.sleep(0.01)
            parts = objects.read(handle)
            if [bytes(data)[0] for _, data in parts.patches] != list(range(20)):
                self._faults.append("patches are missing, or not in order")
            objects.delete(handle.key)
        except Exception as error:
            self._faults.append(f"objects: {type(error).__name__}: {error}")
