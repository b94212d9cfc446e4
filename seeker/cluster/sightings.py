"""What a cluster's list of executors says about one session, and for how long it has said so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from seeker.cluster import wire


class Sightings:
    """Since when each executor of a session has been in its state. Pure.

    Example: three executors in Binding at 0 s and still at 20 s: ``text(20.0) == "3 executors in Binding for 20 s"``.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._seen: dict[str, tuple[int, float]] = {}  # executor -> its state, and when that was first seen

    def observe(self, executors: Iterable[Any], now: float) -> None:
        """`executors` as the protocol lists them, of all sessions."""
        own = {each.metadata.id: each.status.state for each in executors if each.status.session_id == self.session_id}
        before = self._seen
        self._seen = {
            executor: before[executor] if before.get(executor, (-1, 0.0))[0] == state else (state, now)
            for executor, state in own.items()
        }

    def bound(self) -> set[str]:
        return {executor for executor, (state, _) in self._seen.items() if state == wire.EXECUTOR_BOUND}

    def text(self, now: float) -> str:
        if not self._seen:
            return "no executor"
        numbers = Counter(state for state, _ in self._seen.values())
        parts: list[str] = []
        for state, number in sorted(numbers.items()):
            since = min(first for each, first in self._seen.values() if each == state)
            plural = "executors" if number > 1 else "executor"
            parts.append(f"{number} {plural} in {wire.EXECUTOR_STATES[state]} for {now - since:.0f} s")
        return ", ".join(parts)
