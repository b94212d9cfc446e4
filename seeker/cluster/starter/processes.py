"""Ending a process with everything that it started, without a process group of its own.

The service process stays in its executor's group, so that the cluster's signals reach it and what it started. What
the starter ends, it finds itself: by parentage, and by a mark in the environment that orphans and daemons keep. The
starter adopts orphans (Linux), so none gets out of sight.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

MARK = "SEEKER_SERVICE_PROCESS"
_PR_SET_CHILD_SUBREAPER = 36
_PROC = "/proc"
_PAUSE_S = 0.01


def adopt_orphans() -> None:
    """Orphans below this process become its children, not those of the first process of the machine."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(root: int | None, mark: str, adopted: bool, seconds: float = 5.0) -> None:
    """Kill `root` (None: it is dead already) and all that it started, until nothing of it is left, or time is up.

    `adopted`: this process has no other children, so that every orphan it got is one of them.
    """
    end = time.monotonic() + seconds
    killed: set[int] = set()
    _freeze(root, mark, adopted)
    while True:
        targets = _targets(root, mark, adopted)
        for pid in targets:
            _send(pid, signal.SIGKILL)
        killed |= targets - {root}  # which its starter waits for
        for pid in killed:
            _reap(pid)
        if not targets or time.monotonic() > end:
            return
        time.sleep(_PAUSE_S)


def reap_orphans(root: int) -> None:
    """Collect adopted orphans that have ended by themselves; never `root`, whose exit code is wanted."""
    while hasattr(os, "waitid"):
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == root:
            return
        _reap(ended.si_pid)


def _freeze(root: int | None, mark: str, adopted: bool) -> None:
    """Stop all first: what is being ended must not start more, nor lose its parent while it is looked for."""
    frozen: set[int] = set()
    if root is not None:
        _send(root, signal.SIGSTOP)
    for _ in range(100):
        new = _targets(root, mark, adopted) - frozen
        if not new:
            return
        for pid in new:
            _send(pid, signal.SIGSTOP)
        frozen |= new


def _targets(root: int | None, mark: str, adopted: bool) -> set[int]:
    parents = _parents()
    if not parents:  # no /proc here: the root alone
        return set() if root is None or _is_gone(root) else {root}
    wanted = {pid for pid in parents if _carries(pid, mark)}
    if adopted:
        wanted |= {pid for pid, parent in parents.items() if parent == os.getpid()}
    if root in parents:
        wanted.add(root)
    return (wanted | _below(wanted, parents)) - {os.getpid()}


def _below(roots: set[int], parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    new = set(roots)
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _parents() -> dict[int, int]:
    """Process id to parent's id, of all processes that are alive; zombies are not."""
    parents: dict[int, int] = {}
    try:
        entries = os.listdir(_PROC)
    except OSError:
        return parents
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"{_PROC}/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            parents[int(entry)] = int(fields[1])
    return parents


def _carries(pid: int, mark: str) -> bool:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:  # another user's, or gone
        return False


def _send(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return
    except PermissionError:  # it runs as another user by now: not ours to end
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # its own parent collects it
        return


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
