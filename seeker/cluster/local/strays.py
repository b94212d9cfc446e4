"""Processes that left their executor's process group: found by a variable that they inherited, and killed.

Not found: what cleared its environment as well as its group, and what runs as another user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator

_MAX_ROUNDS = 5  # one that is killed may have started another meanwhile

_log = logging.getLogger("seeker.cluster.local")


def end_strays(marker: str) -> None:
    """Kill every process with `marker`, such as ``NAME=value``, in its environment. Does nothing without /proc."""
    for _ in range(_MAX_ROUNDS):
        found = list(_marked(marker))
        if not found:
            return
        _log.warning("processes %s left their executor's group; they are killed", found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(marker: str) -> Iterator[int]:
    wanted = marker.encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    yield int(name)
        except OSError:  # it is gone, or not ours
            continue
