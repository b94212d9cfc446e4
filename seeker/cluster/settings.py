"""How to reach a cluster, or how to start the embedded one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import seeker


def _code_root() -> str:
    return str(Path(seeker.__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Without an endpoint (here or in FLAME_ENDPOINT) the embedded cluster is started.

    Example: ``ClusterSettings(slots=16, log_dir="runs/demo/logs", run_id="demo")``.
    """

    endpoint: str | None = None  # http://host:8080 or https://...
    cache_endpoint: str | None = None  # grpc://host:9090 or grpcs://...
    ca_file: str | None = None  # certificate authority of https and grpcs endpoints
    python: str | None = None  # the executors' interpreter; see `executor_python`
    slots: int = 16  # capacity of the embedded cluster's node, whatever cores the machine has
    log_dir: str | None = None
    connect_deadline_s: float = 10.0
    code_root: str | None = None  # directory that holds `seeker` on the executors' nodes; this tree when absent
    run_id: str = "run"

    def resolved_endpoint(self) -> str | None:
        return self.endpoint or os.environ.get("FLAME_ENDPOINT") or None

    def resolved_cache_endpoint(self) -> str:
        return self.cache_endpoint or os.environ.get("FLAME_CACHE_ENDPOINT") or "grpc://127.0.0.1:9090"

    def resolved_ca_file(self) -> str | None:
        return self.ca_file or os.environ.get("FLAME_CA_FILE") or None

    def resolved_code_root(self) -> str:
        return self.code_root or _code_root()

    def executor_python(self) -> str:
        """The setting, else SEEKER_EXECUTOR_PYTHON, else the project's executor environment, else this interpreter."""
        named = self.python or os.environ.get("SEEKER_EXECUTOR_PYTHON")
        if named:
            return os.path.abspath(named)
        beside = Path(_code_root()) / ".venv-executor" / "bin" / "python"
        return str(beside) if beside.exists() else sys.executable
