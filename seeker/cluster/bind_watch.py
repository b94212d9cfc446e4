"""When to stop waiting for executors: bind failures never reach a call, they are events of its session."""

from __future__ import annotations

from typing import Any

from seeker.cluster import wire

BIND_PATIENCE_S = 4.0  # bind failures older than this, with nothing running, fail the calls that wait


class BindWatch:
    """Decides from a session's status, looked at again and again, when waiting has no point any more. Pure.

    Example: five bind failures and the cluster's giving up: at once. One failure, and nothing has run for
    `BIND_PATIENCE_S` since it was seen: then. A call that ran meanwhile clears what was before it.
    """

    def __init__(self) -> None:
        self._num_cleared = 0  # events before the last progress
        self._progress = (0, 0)
        self._failed_at: float | None = None

    def observe(self, status: Any, now: float) -> str | None:
        """The text of the last bind failure when no executor can be expected, else None."""
        progress = (status.succeed, status.failed)
        if status.running or progress != self._progress:
            self._progress = progress
            self._failed_at = None
            self._num_cleared = len(status.events)
            return None
        texts: list[str] = [
            event.message for event in status.events[self._num_cleared :] if event.code == wire.BIND_FAILED
        ]
        given_up = any(event.code == wire.BIND_GIVEN_UP for event in status.events)
        if not texts and not given_up:
            return None
        self._failed_at = self._failed_at or now
        if given_up or now - self._failed_at > BIND_PATIENCE_S:
            return texts[-1] if texts else "the cluster has given up on this session after earlier failures"
        return None
