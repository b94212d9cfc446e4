"""Waiting with a deadline, which the stock client has not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import flamepy
import pytest
from flamepy.runner.runner import ObjectFuture

# A real cluster holds idle executors for a minute before others can have their place.
LIMIT_S = float(os.environ.get("FLAME_CONFORMANCE_DEADLINE_S") or (170 if os.environ.get("FLAME_ENDPOINT") else 60))


def value_of(future: Any) -> Any:
    """The value of a core or a Runner future."""
    if isinstance(future, ObjectFuture):
        future._future.result(timeout=LIMIT_S)
        return future.get()
    return future.result(timeout=LIMIT_S)


def values_of(futures: list[Any]) -> list[Any]:
    return [value_of(future) for future in futures]


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)


def within(work: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """What `work` returns; a call that never ends fails its test and leaves a thread behind."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(timeout=limit_s)


def failure_text(session: flamepy.Session, task_id: str) -> str:
    """The text of a failed task: of its event with the code of the state, which only `get_task` brings for sure."""
    task = session.get_task(task_id)
    texts = [event.message for event in task.events if event.code == flamepy.TaskState.FAILED]
    assert len(texts) == 1, task
    return texts[0]


def fails(future: Any, text: str) -> None:
    """The future fails, and the cluster says why. The exception has the text only where streams carry events."""
    inner = future._future if isinstance(future, ObjectFuture) else future
    with pytest.raises(flamepy.FlameError) as caught:
        inner.result(timeout=LIMIT_S)
    assert caught.value.code == flamepy.FlameErrorCode.INTERNAL
    assert text in caught.value.message or caught.value.message == "Task failed without error message"
    assert text in failure_text(inner._session, inner._task_id)


def executors_of(session: flamepy.Session) -> list[Any]:
    return [each for each in flamepy.list_executors() if each.status.session_id == session.id]
