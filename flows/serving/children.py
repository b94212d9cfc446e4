"""Processes that live as long as the process that started them.

Each holds the reading end of a pipe as its standard input and ends when that closes: on a clean stop, and also when
its starter is killed with -9. Each is in a session of its own, so that Ctrl-C reaches only the starter, which stops
them in their order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seeker.presets import project_root


@dataclass
class Child:
    """One process. Example: ``Child("worker", process, Path(".prefect/logs/worker.log"))``."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, within_s: float) -> bool:
        """Close its standard input and wait; kill its whole session after `within_s`. True when it went by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(within_s)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self) -> None:
        signal_session(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def how_it_ended(self) -> str:
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def start_child(
    name: str,
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    descriptors: Sequence[int] = (),
) -> Child:
    """Run `module` with what it says in `log`; `descriptors` are handed down."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            env=dict(environ),
            cwd=project_root(),
            start_new_session=True,
        )
    return Child(name, process, log)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Signal every process of the session that `leader` leads or led."""
    for pid in session_members(leader):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it went between the look and the signal


def session_members(leader: int) -> list[int]:
    """Processes of a session, its leader last."""
    found = [pid for pid, fields in _processes() if int(fields[3]) == leader and fields[0] != "Z"]
    return sorted(found, key=lambda pid: pid == leader)


def children_of(parent: int) -> list[int]:
    return [pid for pid, fields in _processes() if int(fields[1]) == parent and fields[0] != "Z"]


def descendants(parent: int) -> list[int]:
    """Processes below `parent`, the nearest first."""
    found: list[int] = []
    waiting = children_of(parent)
    while waiting:
        pid = waiting.pop(0)
        found.append(pid)
        waiting += children_of(pid)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none where it cannot be looked at."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(each.partition("=")[::2] for each in text.split("\0") if each)


def all_processes() -> list[int]:
    return [pid for pid, fields in _processes() if fields[0] != "Z"]


def has_ended(pid: int) -> bool:
    """True also for a process that its parent has not taken note of yet."""
    return next((fields[0] == "Z" for other, fields in _processes() if other == pid), True)


def _processes() -> list[tuple[int, list[str]]]:
    """Process id, and state, parent, group and session of every process that can be seen."""
    seen: list[tuple[int, list[str]]] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            seen.append((int(status.parent.name), status.read_text().rpartition(")")[2].split()[:4]))
        except OSError:
            continue  # it ended meanwhile
    return seen
