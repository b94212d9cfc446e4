"""Sessions.

1.  A new session is open, empty and named after its application, or as its creator says.
2.  A name is taken once; an unknown application is refused. Both are INTERNAL to the creator.
3.  Opening gets or creates, and has real codes: NOT_FOUND without a specification; INVALID_ARGUMENT where the session
    has another application, minimum, maximum, batch size or resources. Common data is not compared.
4.  Closing is final and may be repeated: INVALID_ARGUMENT to open, an error to give it a task.
5.  Unknown sessions are errors; the list shows open and closed ones.
6.  Minimum and maximum are whole batches; a minimum of 0 is.
7.  Common data are bytes, and reach client and service unchanged.
8.  Sessions of one application count their tasks apart.
9.  The minimum is started without a call.
10. Resources are kept: executors made for a session have them.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import flamepy
import pytest
from flamepy.core.types import FlameErrorCode, ResourceRequirement, SessionAttributes, SessionState

from tests.cluster.conformance.waiting import executors_of, value_of, wait_until


def test_a_new_session(plain: str) -> None:  # 1
    session = flamepy.create_session(plain)
    assert re.fullmatch(rf"{plain}-\w{{6}}", session.id)
    assert (session.application, session.state, session.common_data()) == (plain, SessionState.OPEN, None)
    assert (session.pending, session.running, session.succeed, session.failed) == (0, 0, 0, 0)
    assert (session.completion_time, session.events) == (None, [])
    assert abs(session.creation_time - datetime.now(session.creation_time.tzinfo)) < timedelta(hours=12)
    assert session.close() is None


def test_names_are_taken_once(plain: str, name: str) -> None:  # 1, 2
    session = flamepy.create_session(plain, session_id=name)
    assert session.id == name
    with pytest.raises(flamepy.FlameError, match="already exists") as caught:
        flamepy.create_session(plain, session_id=name)
    assert caught.value.code == FlameErrorCode.INTERNAL
    session.close()
    with pytest.raises(flamepy.FlameError, match="already exists"):
        flamepy.create_session(plain, session_id=name)


def test_an_unknown_application_is_refused(name: str) -> None:  # 2
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.create_session(name)
    assert caught.value.code == FlameErrorCode.INTERNAL
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(name, SessionAttributes(id=name, application=name))
    assert caught.value.code == FlameErrorCode.NOT_FOUND


def test_opening_gets_or_creates(plain: str, name: str) -> None:  # 3
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(name)
    assert caught.value.code == FlameErrorCode.NOT_FOUND
    wanted = SessionAttributes(
        id=name,
        application=plain,
        common_data=b"x",
        max_instances=4,
        batch_size=2,
        resreq=ResourceRequirement(1, 2**20),
    )
    created = flamepy.open_session(name, wanted)
    assert (created.id, created.state, created.common_data()) == (name, SessionState.OPEN, b"x")
    for spec in (wanted, None):
        assert flamepy.open_session(name, spec).common_data() == b"x"
    other_data = SessionAttributes(**{**vars(wanted), "common_data": b"y"})
    assert flamepy.open_session(name, other_data).common_data() == b"x"
    created.close()


@pytest.mark.parametrize(
    "other",
    [
        {"max_instances": 8},
        {"max_instances": None},
        {"min_instances": 2},
        {"batch_size": 4},
        {"resreq": ResourceRequirement(2, 2**20)},
        {"application": "flmrun"},
    ],
    ids=str,
)
def test_opening_with_another_specification(plain: str, name: str, other: dict[str, object]) -> None:  # 3
    wanted = {"id": name, "application": plain, "max_instances": 4, "resreq": ResourceRequirement(1, 2**20)}
    session = flamepy.open_session(name, SessionAttributes(**wanted))
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.open_session(name, SessionAttributes(**{**wanted, **other}))
    assert caught.value.code == FlameErrorCode.INVALID_ARGUMENT
    session.close()


def test_closing(plain: str) -> None:  # 4
    session = flamepy.create_session(plain)
    closed = flamepy.close_session(session.id)
    assert (closed.id, closed.state) == (session.id, SessionState.CLOSED)
    assert closed.completion_time >= closed.creation_time
    assert flamepy.close_session(session.id).state == SessionState.CLOSED
    assert flamepy.get_session(session.id).state == SessionState.CLOSED
    with pytest.raises(flamepy.FlameError, match="not open") as caught:
        flamepy.open_session(session.id)
    assert caught.value.code == FlameErrorCode.INVALID_ARGUMENT
    with pytest.raises(flamepy.FlameError, match="failed to create task"):
        session.create_task(b"late")


def test_unknown_sessions(name: str) -> None:  # 5
    for work in (flamepy.get_session, flamepy.close_session):
        with pytest.raises(flamepy.FlameError) as caught:
            work(name)
        assert caught.value.code == FlameErrorCode.INTERNAL


def test_the_list(plain: str) -> None:  # 5
    first, second = flamepy.create_session(plain), flamepy.create_session(plain, common_data=b"data")
    first.close()
    listed = {each.id: each for each in flamepy.list_sessions()}
    assert (listed[first.id].state, listed[second.id].state) == (SessionState.CLOSED, SessionState.OPEN)
    assert listed[second.id].common_data() == b"data"
    second.close()


@pytest.mark.parametrize(("minimum", "maximum", "batch", "passes"), [
    (3, None, 2, False), (0, 3, 2, False), (2, 5, 2, False), (0, 4, 2, True), (0, None, 3, True),
])  # fmt: skip
def test_whole_batches(plain: str, minimum: int, maximum: int | None, batch: int, passes: bool) -> None:  # 6
    arguments = {"min_instances": minimum, "max_instances": maximum, "batch_size": batch}
    if passes:
        flamepy.create_session(plain, **arguments).close()
        return
    with pytest.raises(flamepy.FlameError, match="multiple"):
        flamepy.create_session(plain, **arguments)


def test_common_data(plain: str) -> None:  # 7
    data = bytes(range(256)) * 40
    session = flamepy.create_session(plain, common_data=data, max_instances=1)
    assert session.common_data() == flamepy.get_session(session.id).common_data() == data
    assert value_of(session.run(b"!")) == data + b"!"
    session.close()
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.create_session(plain, common_data="text")
    assert caught.value.code == FlameErrorCode.INVALID_ARGUMENT


def test_sessions_count_apart(plain: str) -> None:  # 8
    attributes = {"max_instances": 1, "common_data": b"refuse"}  # their tasks stay
    sessions = [flamepy.create_session(plain, **attributes) for _ in range(2)]
    assert [session.create_task(b"x").id for session in (*sessions, *sessions)] == ["1", "1", "2", "2"]
    assert [flamepy.get_session(session.id).pending for session in sessions] == [2, 2]
    for session in sessions:
        session.close()


def test_the_minimum_is_started_without_a_call(plain: str) -> None:  # 9, 10
    wanted = ResourceRequirement.from_string("cpu=1,mem=256m")
    session = flamepy.create_session(plain, min_instances=2, max_instances=2, resreq=wanted)
    wait_until(lambda: len([each for each in executors_of(session) if each.status.state == 4]) >= 2, "two bound")
    made = [(each.spec.resreq.cpu, each.spec.resreq.memory, each.spec.resreq.gpu) for each in executors_of(session)]
    assert (1, 256 * 2**20, 0) in made or any(memory > 256 * 2**20 for _, memory, _ in made)  # others' may be bound
    session.close()
