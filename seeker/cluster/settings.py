"""How to reach a cluster, or how to start the embedded one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import seeker
from seeker.cluster.named import Address, checked_address, read_context

Faults = Literal["none", "engine"]
CONTEXT_VARIABLE = "SEEKER_CLUSTER_CONTEXT"
SETTINGS = "cluster settings (cluster.endpoint, cluster.cache_endpoint)"  # sources of an address
ENVIRONMENT = "environment (FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT)"


def _code_root() -> str:
    return str(Path(seeker.__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Without a named cluster (see `address`) the embedded one is started; fields marked * are for that one alone.

    Example: ``ClusterSettings(slots=16, log_dir="runs/demo/logs", run_id="demo")``.
    """

    endpoint: str | None = None  # http://host:8080 or https://...
    cache_endpoint: str | None = None  # grpc://host:9090 or grpcs://...
    ca_file: str | None = None  # certificate authority of https and grpcs endpoints
    context: str | None = None  # a context of ~/.flame/flame.yaml
    python: str | None = None  # the executors' interpreter; see `executor_python`
    slots: int = 16  # * capacity of the node in cores, whatever the machine has
    memory_bytes: int | None = None  # * capacity of the node; the machine's when absent
    gpus: int | None = None  # * capacity of the node; the machine's when absent
    spill_dir: str | None = None  # * where objects go that are above `memory_limit_bytes`
    memory_limit_bytes: int | None = None  # * of objects held in memory; needs `spill_dir`
    faults: Faults = "none"  # * "engine": those of real 0.6 servers, for tests
    grpc_only: bool = False  # * every call by gRPC, also those that frames on a unix socket carry quicker
    log_dir: str | None = None
    connect_deadline_s: float = 10.0
    lease_s: float = 30.0  # services end their work when this driver has been silent for so long
    code_root: str | None = None  # where the executors' nodes may have this very tree, besides its place here
    run_id: str = "run"

    def address(self) -> Address | None:
        """The named cluster; None means the embedded one. The first source that names any part decides all of it:

        `endpoint` and `cache_endpoint` here, `context` here or in SEEKER_CLUSTER_CONTEXT, then FLAME_ENDPOINT and
        FLAME_CACHE_ENDPOINT. Certificates: `ca_file` here, else the context's, else FLAME_CA_FILE.
        """
        ca_file = self.ca_file or os.environ.get("FLAME_CA_FILE") or None
        if self.endpoint or self.cache_endpoint:
            return checked_address(self.endpoint, self.cache_endpoint, (ca_file, ca_file), SETTINGS)
        context = self.context or os.environ.get(CONTEXT_VARIABLE)
        if context:
            named = read_context(context)
            ca_files = (self.ca_file or named.ca_file or ca_file, self.ca_file or named.cache_ca_file or ca_file)
            who = "cluster.context" if self.context else CONTEXT_VARIABLE
            return checked_address(named.endpoint, named.cache_endpoint, ca_files, f"{named.source} ({who})")
        endpoint, cache_endpoint = os.environ.get("FLAME_ENDPOINT"), os.environ.get("FLAME_CACHE_ENDPOINT")
        if endpoint or cache_endpoint:
            return checked_address(endpoint, cache_endpoint, (ca_file, ca_file), ENVIRONMENT)
        return None

    def executor_python(self) -> str:
        """The setting, else SEEKER_EXECUTOR_PYTHON, else the project's executor environment, else this interpreter."""
        named = self.python or os.environ.get("SEEKER_EXECUTOR_PYTHON")
        if named:
            return os.path.abspath(named)
        beside = Path(_code_root()) / ".venv-executor" / "bin" / "python"
        return str(beside) if beside.exists() else sys.executable
