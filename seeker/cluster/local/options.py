"""What an embedded cluster can be told: its node's capacity, where it listens, its logs, objects and faults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seeker.cluster.local.devices import found_devices
from seeker.cluster.resources import Resources
from seeker.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Example: ``LocalSettings(python="/venv/bin/python", slots=16, memory_bytes=8 * 2**30, gpus=0)``."""

    python: str
    slots: int = 16  # cores of the node, whatever the machine has
    memory_bytes: int | None = None  # the machine's when absent, and so are the GPUs
    gpus: int | None = None
    host: str = LOOPBACK  # any other address is refused
    spill_dir: Path | None = None
    object_memory_bytes: int | None = None  # objects above it go to `spill_dir`
    faults: Literal["none", "engine"] = "none"
    grpc_only: bool = False
    log_dir: Path | None = None
    socket_deadline_s: float = 30.0

    @property
    def has_frames(self) -> bool:
        """Whether calls of our own kind go as frames over unix sockets; with the engine's faults all goes its way."""
        return self.faults == "none" and not self.grpc_only


def check_settings(settings: LocalSettings) -> None:
    """Raise `ConfigError` unless a cluster may be started like this."""
    for name, value, low in (
        ("slots", settings.slots, 1),
        ("memory", settings.memory_bytes, 1),
        ("gpus", settings.gpus, 0),
        ("object-memory", settings.object_memory_bytes, 0),
    ):
        if value is not None and value < low:
            raise ConfigError(f"--{name}: expected {low} or more, found {value}")
    if (settings.object_memory_bytes is None) != (settings.spill_dir is None):
        raise ConfigError("--object-memory and --spill-dir go together: objects above the one are kept in the other")
    _check_host(settings.host)


def _check_host(host: str) -> None:
    if host not in (LOOPBACK, "localhost"):
        raise ConfigError(
            f"--host {host}: only this machine's own address ({LOOPBACK}) is allowed: calls and objects are pickles, "
            "which run code where they are read, and nobody who connects is asked who they are. "
            "For several machines use a real Flame cluster"
        )


def capacity_of(settings: LocalSettings) -> Resources:
    """What the node offers: as set, else as the machine has it."""
    memory = settings.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = len(found_devices()) if settings.gpus is None else settings.gpus
    return Resources(settings.slots, memory, gpus)
