"""A session whose service cannot be made ready.

1.  Events 1001 carry the return code (12: entering the session) and the service's own text; after five of them 1002.
2.  Its tasks stay pending, the session stays open, `get_session` and `list_sessions` show the events.
3.  Closing it works and cancels the tasks: state 4, which the SDK's watch does not know.
4.  A class that cannot be constructed is such a service, whoever calls it.
5.  Others are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import flamepy
import pytest
from flamepy.core.types import FlameErrorCode, SessionState, TaskState
from flamepy.runner import Runner

from tests.cluster.conformance.waiting import value_of, wait_until, within
from tests.cluster.conformance.workloads import Broken

BIND_FAILED, GIVEN_UP = 1001, 1002


@pytest.fixture(scope="module")
def refused(plain: str) -> Iterator[flamepy.Session]:
    """It fails beside the tests that need it less."""
    session = flamepy.create_session(plain, common_data=b"refuse", max_instances=1)
    session.create_task(b"x")
    yield session
    session.close()


def _codes(session: flamepy.Session) -> list[int]:
    return [event.code for event in flamepy.get_session(session.id).events]


def test_others_are_served_meanwhile(refused: flamepy.Session, shared: flamepy.Session) -> None:  # 5
    assert value_of(shared.run(b"well")) == b"<well"


def test_a_class_that_cannot_be_constructed(runner: Runner) -> None:  # 1, 4
    service = runner.service(Broken, autoscale=False)
    future = service.work()._future
    wait_until(lambda: BIND_FAILED in _codes(service._session), "the first failure")
    event = flamepy.get_session(service._session.id).events[0]
    assert "failed to bind session with return_code <12>" in event.message
    assert "no such engine here" in event.message
    assert not future.done()
    service.close()
    with pytest.raises(flamepy.FlameError, match="4 is not a valid TaskState"):  # 3
        value_of(future)


def test_events_and_the_end_of_patience(refused: flamepy.Session) -> None:  # 1, 2
    wait_until(lambda: GIVEN_UP in _codes(refused), "the cluster gives up")
    session = flamepy.get_session(refused.id)
    assert _codes(refused) == [BIND_FAILED] * 5 + [GIVEN_UP]
    assert all("cannot enter this session" in event.message for event in session.events[:5])
    assert all(event.creation_time.tzinfo for event in session.events)
    assert (session.state, session.pending, session.running) == (SessionState.OPEN, 1, 0)
    assert refused.get_task("1").state == TaskState.PENDING
    listed = next(each for each in flamepy.list_sessions() if each.id == refused.id)
    assert [event.code for event in listed.events] in ([], _codes(refused))


def test_closing_it(plain: str, refused: flamepy.Session) -> None:  # 3
    watcher = refused.watch_task("1")
    refused.close()
    with pytest.raises(flamepy.FlameError, match="4 is not a valid TaskState") as caught:
        within(lambda: list(watcher))
    assert caught.value.code == FlameErrorCode.INTERNAL
    assert flamepy.get_session(refused.id).state == SessionState.CLOSED
    with pytest.raises(flamepy.FlameError, match="failed to create task"):
        refused.create_task(b"late")
