"""What disturbs a training run in the drills: kills of its processes, and another client on the same cluster."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from seeker.cluster.client import ClusterSettings, gather, open_cluster
from tests.cluster.victims import victims

ECHO = "tests.cluster.services:Echo"
EXECUTOR_EVERY = 7  # of the kills, one in so many hits the executor's own process
SPREAD_S = 1.5
PAUSE_S = 4.0  # between visits, each of which starts six processes


class Disturbance:
    """A thread for as long as a with block lasts; what it raises is raised at the block's end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.over.set()
        self._thread.join(120)
        if kind is None:
            assert not self._thread.is_alive(), f"{self} hangs"
            if self._error is not None:
                raise self._error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error

    def run(self) -> None:
        raise NotImplementedError


class Attacker(Disturbance):
    """`num_kills` kills spread over a run's steps, each some time after its step has begun to write.

    No step gets more than its share, since a call that is lost three times ends the run by design.
    """

    def __init__(self, root: Path, cluster: int, num_kills: int, num_steps: int, seed: int) -> None:
        super().__init__()
        self.killed: list[str] = []  # such as "12 trainer-run-1f.log"
        self._root, self._cluster = root, cluster
        self._steps = [number * (num_steps - 1) // num_kills for number in range(num_kills)]
        self._draw = random.Random(seed)

    def run(self) -> None:
        for number, step in enumerate(self._steps):
            while not (self._root / "steps" / f"{step:06d}").is_dir():
                if self.over.wait(0.01):
                    return
            self.over.wait(self._draw.uniform(0.0, SPREAD_S))
            while not self.over.is_set() and not self._strike(step, hits_executor=number % EXECUTOR_EVERY == 3):
                time.sleep(0.05)

    def _strike(self, step: int, hits_executor: bool) -> bool:
        found = self._services()
        if not found:
            return False
        pid = self._draw.choice(sorted(found))
        try:
            os.kill(parent_of(pid) if hits_executor else pid, signal.SIGKILL)
        except OSError:
            return False
        self.killed.append(f"{step} {'executor of ' if hits_executor else ''}{found[pid]}")
        return True

    def _services(self) -> dict[int, str]:
        """The run's service processes, each with its log, which lies in the run directory."""
        logs = str((self._root / "logs").resolve())
        found: dict[int, str] = {}
        for pid in victims(self._cluster)["service"]:
            try:
                path = os.readlink(f"/proc/{pid}/fd/1")
            except OSError:
                continue
            if path.startswith(logs):
                found[pid] = Path(path).name
        return found


class Neighbour(Disturbance):
    """Another client that comes and goes, with more calls than executors; half the time it leaves in the middle."""

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__()
        self.num_visits = 0
        self._settings = settings

    def run(self) -> None:
        while not self.over.wait(PAUSE_S):
            with open_cluster(self._settings) as cluster:
                service = cluster.start(
                    "visit", "tests.cluster.services:Echo", {}, "mem=64m", executors=3, release_s=20
                )
                calls = [service.call("sleep", 0.2, deadline_s=90, idempotent=True) for _ in range(6)]
                for call in gather(calls if self.num_visits % 2 else calls[:3], 120):
                    assert call.result() == 0.2
            assert cluster.abandoned == []
            self.num_visits += 1


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
