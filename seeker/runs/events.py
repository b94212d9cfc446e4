"""`events.jsonl`: counters of infrastructure trouble.

They depend on what broke and when, so they stand apart from the metrics, which are the same for a run that was
interrupted and one that was not. No equality test reads this file.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeker.runs import disk
from seeker.runs.files import Json


@dataclass(frozen=True, slots=True)
class EventLog:
    """Append-only log of one run.

    Example line: ``{"time": 1760000000.1, "event": "call_retried", "step": 3, "call": 1, "attempt": 1, "error": "…"}``.
    """

    path: Path

    def record(self, event: str, **fields: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, default=str) + "\n"
        disk.append(self.path, (("\n" if self._is_torn() else "") + line).encode())

    def _is_torn(self) -> bool:
        """True when a killed process left half a line, which must not swallow the next one."""
        if not self.path.is_file() or not (size := self.path.stat().st_size):
            return False
        with open(self.path, "rb") as file:
            file.seek(size - 1)
            return file.read(1) != b"\n"

    def read(self) -> list[Json]:
        """All events; a line that a crash cut off is left out."""
        if not self.path.is_file():
            return []
        events: list[Json] = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # the write of a killed process, or an empty line; an event log is a record, not state
        return events

    def count(self, event: str) -> int:
        return sum(entry["event"] == event for entry in self.read())
