"""How many strangers a session may meet.

A gang of a long run meets some in every generation; only many without one answer between them mean that nobody can do
its calls.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from seeker.cluster.session_watch import MAX_STRANGERS, SessionWatch
from seeker.errors import ClusterError


def test_strangers_are_counted_from_the_last_answer() -> None:
    asyncio.run(_meet_strangers())


async def _meet_strangers() -> None:
    told: list[tuple[str | None, ClusterError]] = []
    plan: Any = SimpleNamespace(id="run-gang", prefix="app/run-gang", max_executors=2)
    nothing: Any = None
    watch = SessionWatch(plan, nothing, nothing, lambda call, error: told.append((call, error)))
    for generation in range(20):
        for executor in range(6):
            watch._note_parked({"call": f"c{generation}", "executor": f"e{executor}", "reason": "stranger"})
        watch.answered()
    assert len(told) == 120
    assert all(call is not None for call, _ in told)  # each is sent again; no other call is failed
    for number in range(MAX_STRANGERS + 1):
        watch._note_parked({"call": "last", "executor": f"e{number}", "reason": "stranger"})
    (everyone,) = [str(error) for call, error in told if call is None]
    assert "no executor may do its calls: stranger" in everyone
