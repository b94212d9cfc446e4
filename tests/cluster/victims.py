"""Whom a drill may kill: a cluster's processes by what they are; and those that nobody is in charge of any more."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
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


def orphans(cluster: int, root: Path) -> dict[int, str]:
    """Processes that an executor of this cluster started, which are no longer below it, with their command lines."""
    below = descendants(cluster)
    left = [pid for pid in _started_under(root) if pid not in below and is_running(pid)]
    return {pid: _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[-200:] for pid in left}


def await_no_orphans(cluster: int, root: Path, deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while left := orphans(cluster, root):
        assert time.monotonic() < end, f"out of the cluster's sight for {deadline_s} s: {left}"
        time.sleep(0.05)


def _started_under(root: Path) -> Iterator[int]:
    marker = f"FLAME_INSTANCE_ENDPOINT={root}/".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if any(value.startswith(marker) for value in _read(int(folder.name), "environ").split(b"\0")):
            yield int(folder.name)


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
