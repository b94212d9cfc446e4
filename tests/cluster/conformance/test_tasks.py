"""Tasks through the core API.

1.  `invoke` returns the output, `run` a future of it; bytes arrive unchanged, in whatever number.
2.  A task is pending when created, its id a decimal number that counts from 1 in its session.
3.  A watch never tells of the pending state, may skip states, ends after a terminal one; what is done is told once.
4.  `get_task` has input, output, times and events; a service that returns nothing leaves the output absent.
5.  `list_tasks` streams all of them, in any order.
6.  A failed task is not tried again, its session goes on. Its text is in the event of `get_task`.
7.  The session counts its tasks by state.
8.  Unknown tasks are errors; the input must be bytes.
9.  Closing is refused while a task runs, and leaves pending ones alone; then it is not.
10. Inputs of 4,190,000 bytes pass, 4,200,000 do not; outputs of a megabyte pass.
11. `watch_task` looks at its timeout between messages.
"""

from __future__ import annotations

from datetime import timedelta

import flamepy
import pytest
from flamepy.core.types import FlameErrorCode, TaskState

from tests.cluster.conformance.waiting import fails, failure_text, value_of, values_of, wait_until, within


def test_calls(shared: flamepy.Session) -> None:  # 1
    assert shared.invoke(b"a") == b"<a"
    inputs = [bytes([number]) * number for number in range(1, 256, 5)]
    assert values_of([shared.run(data) for data in inputs]) == [b"<" + data for data in inputs]
    assert shared.invoke(bytes(range(256))) == b"<" + bytes(range(256))


def test_ids_counters_and_lists(session: flamepy.Session) -> None:  # 2, 5, 6, 7
    created = [session.create_task(data) for data in (b"a", b"fail on purpose", b"none", b"b")]
    assert [task.id for task in created] == ["1", "2", "3", "4"]
    assert {task.state for task in created} == {TaskState.PENDING}
    assert [task.completion_time for task in created] == [None] * 4
    ends = [within(lambda task=task: list(session.watch_task(task.id))[-1].state) for task in created]
    assert ends == [TaskState.SUCCEED, TaskState.FAILED, TaskState.SUCCEED, TaskState.SUCCEED]
    listed = {task.id: task for task in session.list_tasks()}
    assert {key: task.state for key, task in listed.items()} == dict(zip(("1", "2", "3", "4"), ends, strict=True))
    assert (listed["1"].input, listed["1"].output, listed["3"].output) == (b"a", b"<a", None)
    counted = flamepy.get_session(session.id)
    assert (counted.pending, counted.running, counted.succeed, counted.failed) == (0, 0, 3, 1)
    assert failure_text(session, "2") == "on purpose"


def test_watching(shared: flamepy.Session) -> None:  # 3
    task = shared.create_task(b"sleep 0.3")
    states = within(lambda: [each.state for each in shared.watch_task(task.id)])
    assert states in ([TaskState.RUNNING, TaskState.SUCCEED], [TaskState.SUCCEED])
    for _ in range(2):
        seen = within(lambda: list(shared.watch_task(task.id)))
        assert [(each.id, each.session_id, each.state, each.output) for each in seen] == [
            (task.id, shared.id, TaskState.SUCCEED, b"slept")
        ]


def test_many_watchers_of_one_task(shared: flamepy.Session) -> None:  # 3
    task = shared.create_task(b"sleep 0.3")
    watchers = [shared.watch_task(task.id) for _ in range(5)]
    for watcher in watchers:
        assert within(lambda watcher=watcher: list(watcher))[-1].state == TaskState.SUCCEED


def test_one_task(shared: flamepy.Session) -> None:  # 4
    future = shared.run(b"once")
    assert value_of(future) == b"<once"
    task = shared.get_task(future._task_id)
    assert (task.session_id, task.input, task.output, task.state) == (shared.id, b"once", b"<once", TaskState.SUCCEED)
    assert task.is_completed()
    assert not task.is_failed()
    assert timedelta(0) <= task.completion_time - task.creation_time < timedelta(minutes=10)
    assert {event.code for event in task.events} <= {TaskState.PENDING, TaskState.RUNNING, TaskState.SUCCEED}
    assert shared.invoke(b"none") is None
    assert shared.invoke(b"") == b"<"


def test_failures(shared: flamepy.Session) -> None:  # 6
    futures = [shared.run(f"fail for reason {number}".encode()) for number in range(3)]
    for number, future in enumerate(futures):
        fails(future, f"for reason {number}")
        task = shared.get_task(future._task_id)
        assert (task.state, task.output, task.is_failed(), task.is_completed()) == (TaskState.FAILED, None, True, True)
    with pytest.raises(flamepy.FlameError):
        shared.invoke(b"fail")
    assert shared.invoke(b"on") == b"<on"


def test_unknown_tasks(shared: flamepy.Session) -> None:  # 8
    for unknown in ("99999999", "not-a-number"):
        with pytest.raises(flamepy.FlameError, match="failed to get task"):
            shared.get_task(unknown)
    with pytest.raises(flamepy.FlameError) as caught:
        shared.create_task("text")
    assert caught.value.code == FlameErrorCode.INVALID_ARGUMENT


def test_closing_while_a_task_runs(session: flamepy.Session) -> None:  # 7, 9
    running, waiting = session.create_task(b"sleep 1.2"), session.create_task(b"x")
    wait_until(lambda: session.get_task(running.id).state == TaskState.RUNNING, "the first task runs")
    assert flamepy.get_session(session.id).running >= 1
    with pytest.raises(flamepy.FlameError, match="Cannot close session with running tasks") as caught:
        session.close()
    assert caught.value.code == FlameErrorCode.INTERNAL
    told = within(lambda: [each.state for each in session.watch_task(waiting.id)])  # 3: begun while it was pending
    assert told in ([TaskState.RUNNING, TaskState.SUCCEED], [TaskState.SUCCEED])
    assert within(lambda: list(session.watch_task(running.id)))[-1].state == TaskState.SUCCEED
    session.close()


def test_sizes(shared: flamepy.Session) -> None:  # 10
    assert value_of(shared.run(b"size " + bytes(4_190_000 - 5))) == b"4189995"
    with pytest.raises(flamepy.FlameError, match="failed to create task") as caught:
        shared.create_task(bytes(4_200_000))
    assert caught.value.code == FlameErrorCode.INTERNAL
    assert len(value_of(shared.run(b"make 1000000"))) == 1_000_000


def test_a_watch_with_a_timeout(shared: flamepy.Session) -> None:  # 11
    task = shared.create_task(b"sleep 0.1")
    assert within(lambda: list(shared.watch_task(task.id, timeout=30)))[-1].state == TaskState.SUCCEED
    with pytest.raises(TimeoutError):
        next(shared.watch_task(task.id, timeout=0))
