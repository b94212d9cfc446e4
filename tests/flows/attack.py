"""Kills of a training run's processes, in the drills."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from tests.cluster.disturbing import Disturbance
from tests.cluster.victims import victims

EXECUTOR_EVERY = 7  # of the kills, one in so many hits the executor's own process
SPREAD_S = 1.5


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


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
