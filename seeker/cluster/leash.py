"""Ties a service process to its executor, first of all: the imports that follow take seconds on a busy machine."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """End when the executor ends: by signal where the kernel offers it, by looking every second elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
