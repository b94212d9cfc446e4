"""Calls: their outcome, waiting for them, and the errors they end with."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from seeker.errors import CallError, ClusterError, DeadlineError, PayloadError

SLACK_S = 30.0  # for the news of a call that has ended by its own deadline


class LostError(ClusterError):
    """An executor or its service process was lost in the call; an idempotent call is done again."""


class CancelledCallError(ClusterError):
    """The call was cancelled: its service was closed while it ran."""


class Call:
    """One method call. `num_retries` counts how often it was done again after its executor was lost."""

    def __init__(self, label: str, deadline_s: float) -> None:
        self.label = label
        self.deadline_s = deadline_s
        self.num_retries = 0
        self.executor = ""  # where it was done
        self.set_up_count = 0  # which process of that executor did it
        self.future: Future[Any] = Future()

    def __repr__(self) -> str:
        return f"<Call {self.label} {'done' if self.done() else 'outstanding'}>"

    def done(self) -> bool:
        return self.future.done()

    def result(self, deadline_s: float | None = None) -> Any:
        """The value, or the typed error. Waits at most `deadline_s`; the call ends by its own deadline in any case."""
        wait_s = self.deadline_s + SLACK_S if deadline_s is None else deadline_s
        try:  # never without a timeout: Arrow's signal handling makes an endless wait deaf to Ctrl-C
            return self.future.result(timeout=wait_s)
        except TimeoutError:
            if self.future.done():
                raise
            raise DeadlineError(f"{self.label} is not done after a wait of {wait_s:g} s") from None


def gather(calls: Iterable[Call], deadline_s: float) -> Iterator[Call]:
    """Calls as they complete. Past the deadline `DeadlineError` names what is outstanding."""
    outstanding = {call.future: call for call in calls}
    total = len(outstanding)
    end = time.monotonic() + deadline_s
    while outstanding:
        done, _ = wait(outstanding, timeout=max(0.0, end - time.monotonic()), return_when=FIRST_COMPLETED)
        if not done:
            some = ", ".join(call.label for call in itertools.islice(outstanding.values(), 3))
            raise DeadlineError(f"{len(outstanding)} of {total} calls not done within {deadline_s:g} s: {some}")
        for future in done:
            yield outstanding.pop(future)


def value_of(reply: dict[str, Any], label: str) -> Any:
    """The value in a starter's reply, or the typed error that it stands for."""
    kind = reply["kind"]
    if kind == "value":
        return pickle.loads(reply["value"])
    text = f"{label}: {_sentence(reply)}{_place(reply)}"
    if kind in ("raised", "setup"):
        raise CallError(text, reply.get("type", ""), reply.get("traceback", ""))
    errors: dict[str, type[ClusterError]] = {
        "deadline": DeadlineError,
        "payload": PayloadError,
        "died": LostError,
        "cancelled": CancelledCallError,
    }
    raise errors.get(kind, ClusterError)(text)


def _sentence(reply: dict[str, Any]) -> str:
    return ": ".join(filter(None, (reply.get("type"), reply["message"])))


def _place(reply: dict[str, Any]) -> str:
    """Executor, traceback and log tail, each where there is one."""
    parts = [f" [executor {reply['executor']}]" if reply.get("executor") else ""]
    for title, key in (("remote traceback", "traceback"), ("end of the service's log", "log")):
        if reply.get(key, "").strip():
            parts.append(f"\n--- {title} ---\n{reply[key].strip()}")
    return "".join(parts)
