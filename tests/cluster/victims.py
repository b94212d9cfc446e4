"""Whom a drill may kill: a cluster's processes by what they are; and those that nobody is in charge of any more."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.conftest import descendants, is_running

KINDS = ("executor", "service", "guardian")


def victims(cluster: int) -> dict[str, list[int]]:
    """Living processes below a cluster's, by kind. Example: ``{"executor": [71, 72], "service": [80], ...}``."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for pid in sorted(descendants(cluster)):
        line = _read(pid, "cmdline")
        if not line:  # a zombie, or gone
            continue
        if b"reaper.py" in line:
            found["guardian"].append(pid)
        elif b"seeker.cluster.child" in line:
            found["service"].append(pid)
        else:
            found["executor"].append(pid)
    return found


def kill_one(rng: random.Random, cluster: int, kinds: tuple[str, ...] = KINDS) -> str:
    """Kill a process of a random kind; the kind, or nothing where none was there."""
    found = victims(cluster)
    kind = rng.choice([kind for kind in kinds if found[kind]] or [""])
    if not kind:
        return ""
    try:
        os.kill(rng.choice(found[kind]), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return kind


def orphans(cluster: int, root: Path) -> list[int]:
    """Processes that an executor of this cluster started, which are no longer below it."""
    below = descendants(cluster)
    return [pid for pid in _started_under(root) if pid not in below and is_running(pid)]


def _started_under(root: Path) -> Iterator[int]:
    marker = f"FLAME_INSTANCE_ENDPOINT={root}/".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if any(value.startswith(marker) for value in _read(int(folder.name), "environ").split(b"\0")):
            yield int(folder.name)


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
