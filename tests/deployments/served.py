"""A `seeker serve` for tests, on a copy of what it needs, and its API by plain requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from seeker.presets import project_root
from tests.deployments.waiting import wait_until

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED", "PAUSED")
START_S = 400.0
BUSY_S = 60.0


@dataclass
class ServedPrefect:
    """Example: ``served.start("train", preset="micro", run_id=str(folder))``."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    def start(self, name: str, **parameters: Any) -> str:
        """Start a flow run of a deployment; its id."""
        deployment = self._ask("GET", f"deployments/name/{name}/{name}")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self._ask("POST", f"deployments/{deployment}/create_flow_run", body)["id"])

    def start_by_command(self, name: str, **parameters: str) -> str:
        """The same as a user types it."""
        given = [part for key, value in parameters.items() for part in ("--param", f"{key}={value}")]
        line = [sys.executable, "-m", "prefect", "deployment", "run", f"{name}/{name}", *given]
        done = subprocess.run(
            line,
            env={**os.environ, "PREFECT_API_URL": self.url},
            check=True,
            capture_output=True,
            text=True,
            timeout=180,
        )
        found = re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return found[0]

    def state(self, flow_run: str) -> dict[str, Any]:
        return self._ask("GET", f"flow_runs/{flow_run}")["state"]

    def set_state(self, flow_run: str, **state: Any) -> str:
        return str(self._ask("POST", f"flow_runs/{flow_run}/set_state", {"state": state})["status"])

    def await_end(self, flow_run: str, within_s: float = 300.0) -> dict[str, Any]:
        wait_until(lambda: self.state(flow_run)["type"] in FINAL, f"the end of {flow_run}", within_s)
        return self.state(flow_run)

    def artifacts(self, flow_run: str) -> dict[str, Any]:
        body = {"flow_runs": {"id": {"any_": [flow_run]}}}
        return {each["key"]: each for each in self._ask("POST", "artifacts/filter", body) if each["key"]}

    def artifact(self, key: str) -> dict[str, Any]:
        (found,) = self._ask("POST", "artifacts/filter", {"artifacts": {"key": {"any_": [key]}}})
        return found

    def forget_triggers(self) -> None:
        """No flow run starts by itself any more: no schedule, no trigger of another deployment."""
        for each in self._ask("POST", "automations/filter", {}):
            if "evaluate" in each["name"]:
                self._ask("DELETE", f"automations/{each['id']}")
        for each in self._ask("POST", "deployments/filter", {}):
            for schedule in each["schedules"]:
                self._ask("PATCH", f"deployments/{each['id']}/schedules/{schedule['id']}", {"active": False})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        end = time.monotonic() + BUSY_S
        answer = httpx.request(method, f"{self.url}/{path}", json=body, timeout=60)
        while answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and time.monotonic() < end:
            time.sleep(0.5)  # its database was locked: Prefect's own client asks again, too
            answer = httpx.request(method, f"{self.url}/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@contextmanager
def serving(folder: Path, command: Sequence[str] = ("flows.cli", "serve")) -> Iterator[ServedPrefect]:
    """Serve from a home in `folder` until the end; nothing may be left of it then."""
    log = folder / "serve.log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--home", str(folder / "home"), "--port", str(_free_port())],
            cwd=project_root(),
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or "param steps=80" in log.read_text(), "serving", START_S)
        found = re.search(r"PREFECT_API_URL=(\S+)", log.read_text())
        assert found is not None, log.read_text()
        yield ServedPrefect(process, log, found[1])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def _free_port() -> int:
    from flows.serving.supervisor import choose_port

    return choose_port(0)
