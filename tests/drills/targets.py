"""Whom a drill kills: the processes of one served flow run, found from the serving process downwards."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from flows.serving.children import all_processes, children_of, environment_of
from tests.cluster.victims import victims
from tests.deployments.served import ServedPrefect

TARGETS = ("flow", "worker", "server", "cluster", "executor", "trainer")
FLOW_RUN = "PREFECT__FLOW_RUN_ID"


@dataclass(frozen=True, slots=True)
class Scene:
    """A flow run and what serves it. Example: ``Scene(served, "8a1c…").find("trainer")`` gives two process ids."""

    served: ServedPrefect
    flow_run: str

    def find(self, target: str) -> list[int]:
        """Living processes that count as the target; executors and trainers each with their service process."""
        if target == "worker":
            return self._serving("flows.serving.worker")
        if target == "server":
            return self._serving("flows.server")
        flows = self._flows()
        if target == "flow":
            return flows
        clusters = [pid for flow in flows for pid in children_of(flow) if "seeker.cluster.local" in command_of(pid)]
        return clusters if target == "cluster" else self._services(clusters, target)

    def leftovers(self) -> list[int]:
        """Every process that the flow run started and that still lives, whoever its parent is."""
        return [pid for pid in all_processes() if environment_of(pid).get(FLOW_RUN) == self.flow_run]

    def _serving(self, module: str) -> list[int]:
        return [pid for pid in children_of(self.served.process.pid) if f" {module} " in command_of(pid)]

    def _flows(self) -> list[int]:
        below = [pid for worker in self.find("worker") for pid in children_of(worker)]
        return [pid for pid in below if environment_of(pid).get(FLOW_RUN) == self.flow_run]

    def _services(self, clusters: list[int], target: str) -> list[int]:
        services = [pid for cluster in clusters for pid in victims(cluster)["service"]]
        wanted = [pid for pid in services if ("trainer" in log_of(pid)) == (target == "trainer")]
        return [each for pid in wanted for each in (pid, parent_of(pid)) if each > 1]


def kill(pid: int) -> bool:
    """Kill -9; False when it was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") + " "
    except OSError:
        return ""


def log_of(pid: int) -> str:
    """Name of the file that a service writes its log to: ``trainer-demo-1f.log``."""
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1")).name
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The process above; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
