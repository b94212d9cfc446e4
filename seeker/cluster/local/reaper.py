"""Ends what a killed cluster left. Runs beside it: ``python -I -S reaper.py DIRECTORY...``, standard library only.

It reads lines ``+GROUP`` and ``-GROUP`` (process groups that were born and that are gone) from its standard input. When
that ends, the cluster has: every group that is left gets TERM, then KILL, and each directory that no living cluster
holds the lock of is removed. Executors die with their cluster by themselves where the kernel offers it; what they
started does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time

LOCK_NAME = "lock"
TERM_WAIT_S = 1.0
KILL_WAIT_S = 0.5
LOCK_WAIT_S = 1.0


def main() -> None:
    end_groups(_listen())
    for directory in sys.argv[1:]:
        end_strays(f"FLAME_INSTANCE_ENDPOINT={directory}/")
        _remove(directory)


def _remove(directory: str) -> None:
    """The kernel may close the cluster's end of our pipe a moment before it frees the cluster's lock."""
    end = time.monotonic() + LOCK_WAIT_S
    while not remove_unless_held(directory) and os.path.exists(directory) and time.monotonic() < end:
        time.sleep(0.02)


def _listen() -> dict[int, str]:
    """The groups that are left when the input ends, each with its leader's start time."""
    groups: dict[int, str] = {}
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            group = int(line[1:])
            if line[:1] == b"+":
                groups[group] = start_time(group)
            else:
                groups.pop(group, None)
    return groups


def end_groups(groups: dict[int, str]) -> None:
    """TERM, then KILL, each group whose leader is still the process that was named, or is gone."""
    left = [group for group, start in groups.items() if start_time(group) in (start, "")]
    for signum, wait_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, KILL_WAIT_S)):
        left = [group for group in left if _signal(group, signum)]
        end = time.monotonic() + wait_s
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = [group for group in left if _signal(group, 0)]


def _signal(group: int, signum: int) -> bool:
    """False when nobody is left in the group."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # the latter: the number belongs to another user's process by now
        return False
    return True


def end_strays(marker: str) -> None:
    """Kill what left its group, known by a variable that it inherited from its executor."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):  # it is gone, or not ours
            if name.isdecimal() and any(value.startswith(marker.encode()) for value in _environment(name)):
                os.kill(int(name), signal.SIGKILL)


def _environment(pid: str) -> list[bytes]:
    with open(f"/proc/{pid}/environ", "rb") as environment:
        return environment.read().split(b"\0")


def start_time(pid: int) -> str:
    """In clock ticks since the machine started; empty where there is no such process or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def remove_unless_held(directory: str) -> bool:
    """Remove a private directory of ours whose lock is free; False when it is alive, absent or not ours."""
    with contextlib.suppress(OSError):  # it went away meanwhile, or is not ours to read
        if os.stat(directory).st_uid != os.getuid():
            return False
        lock = os.open(os.path.join(directory, LOCK_NAME), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
    return False


if __name__ == "__main__":
    main()
