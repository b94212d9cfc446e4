"""What this node has, and whether it is what a service asks for: the cluster's own count of it is not enforced."""

from __future__ import annotations

import os
import socket
import sys
import time
from importlib import metadata
from typing import Any

from .gpus import assigned_devices, node_devices

MEMORY_OVERRIDE = "SEEKER_MEMORY_BYTES"  # the node's memory, on odd machines and in tests
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def executor_id() -> str:
    """Flame names the socket after the executor; the SDK does not tell its id."""
    return os.path.splitext(os.path.basename(os.environ.get("FLAME_INSTANCE_ENDPOINT", "unknown")))[0]


def memory_bytes() -> int:
    """Of the machine, or of the container that this is."""
    override = os.environ.get(MEMORY_OVERRIDE)
    if override:
        return int(override)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def devices() -> list[str]:
    """GPUs that a service on this executor can have."""
    assigned = assigned_devices(os.environ)
    return node_devices(os.environ) if assigned is None else assigned


def misfit(resources: dict[str, Any]) -> str | None:
    """What the node lacks of the resources that the service asks for; None: nothing."""
    wanted_bytes, wanted_gpus = int(resources.get("memory_bytes", 0)), int(resources.get("gpu", 0))
    if wanted_bytes and wanted_bytes > memory_bytes():
        return f"{wanted_bytes} bytes of memory are asked for, node {socket.gethostname()} has {memory_bytes()}"
    if wanted_gpus > 0 and wanted_gpus > len(found := devices()):
        return f"{wanted_gpus} GPUs are asked for, node {socket.gethostname()} has {len(found)} for this executor"
    return None


def about() -> dict[str, Any]:
    """For whoever looks whether a cluster is sound."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "executor": executor_id(),
        "python": sys.version.split()[0],
        "interpreter": sys.executable,
        "flamepy": _version("flamepy"),
        "time": time.time(),
        "memory_bytes": memory_bytes(),
        "gpus": devices(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
