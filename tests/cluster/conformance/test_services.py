"""What a service sees on its node.

1.  It is told its session, its application and each task's id, and is one process from call to call.
2.  It runs in the application's working directory, else in one of its own.
3.  The application's environment is its own; so are the cluster's endpoints and the path of its socket.
4.  `${NAME}` in the command's arguments is filled in from the application's environment.
5.  Its executor is listed as bound to the session, with node and resources, under the id in its socket's name.
6.  Idle for longer than the application's `delay_release` it leaves the session and ends; the next call gets another.
7.  `FlameInstance`: entry points of one or no parameter, plain or async; any value in and out; errors; None.
8.  Its context is shared through the object cache: read, replaced, seen by the client.
9.  `service.Session` opens by application or by session id, never both.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import flamepy
import pytest
from flamepy.core import cache
from flamepy.service import Session as ServiceSession

from tests.cluster.conformance import plain_service
from tests.cluster.conformance.target import Target
from tests.cluster.conformance.waiting import executors_of, value_of, wait_until, within

SOURCE = Path(plain_service.__file__).read_text(encoding="utf-8")
BOUND = 4

INSTANCE = """
import asyncio, sys
from flamepy.service import FlameInstance

instance = FlameInstance()

def answer(request):
    if request == "context":
        return instance.context()
    if request == "fail":
        raise ValueError("asked to fail")
    if isinstance(request, tuple):
        instance.update_context(request[1])
        return None
    return {"request": request, "kind": type(request).__name__}

if sys.argv[1] == "plain":
    instance.entrypoint(answer)
elif sys.argv[1] == "async":
    @instance.entrypoint
    async def later(request):
        await asyncio.sleep(0)
        return answer(request)
else:
    @instance.entrypoint
    def alone():
        return "no parameter"

instance.run()
"""


@pytest.fixture
def told(target: Target, name: str) -> Iterator[flamepy.Session]:
    """A session of an application with environment, directory and arguments, released after a second."""
    attributes = target.service(
        SOURCE,
        "${PLAIN_COLOUR}-${PLAIN_SIZE}",
        environments={"PLAIN_COLOUR": "green", "PLAIN_SIZE": "4"},
        working_directory="/tmp",
        delay_release=1,
    )
    flamepy.register_application(name, attributes)
    note = cache.put_object(f"{name}/notes", "left when?")
    common = f"leave {note.endpoint} {note.key}".encode()
    session = flamepy.create_session(name, common_data=common, max_instances=1)
    yield session
    session.close()
    flamepy.unregister_application(name)
    cache.delete_objects(f"{name}/*")


def _about(session: flamepy.Session) -> dict[str, object]:
    return json.loads(value_of(session.run(b"about")))


def test_what_it_is_told(target: Target, name: str, told: flamepy.Session) -> None:  # 1 to 6
    about, again = _about(told), _about(told)
    assert about["session"] == told.id
    assert (about["task"], again["task"]) == ([told.id, "1"], [told.id, "2"])
    assert about["application"][0] == name
    assert about["application"][1:3] == [flamepy.get_application(name).command, "/tmp"]
    assert Path(about["directory"]).resolve() == Path("/tmp").resolve()
    environment = about["environment"]
    assert (environment["PLAIN_COLOUR"], about["arguments"]) == ("green", ["green-4"])
    assert {"FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT", "FLAME_INSTANCE_ENDPOINT"} <= set(environment)
    listed = {each.metadata.id: each for each in executors_of(told)}
    executor = listed[about["executor"]]
    assert executor.status.state == BOUND
    assert executor.spec.node in [node.metadata.name for node in flamepy.list_nodes()]
    assert executor.spec.resreq.cpu >= 1
    _leaves_when_idle(told, about)


def _leaves_when_idle(told: flamepy.Session, about: dict[str, object]) -> None:  # 6
    wait_until(lambda: about["executor"] not in [each.metadata.id for each in executors_of(told)], "it is released")
    _, endpoint, key = told.common_data().decode().split(" ")
    note = cache.ObjectRef(endpoint, key)
    wait_until(lambda: "left" in cache.get_object(note, _patches), "it leaves its session")
    fresh = _about(told)
    assert (fresh["num_calls"], fresh["task"][1]) == (1, "3")
    assert fresh["pid"] != about["pid"]


def _patches(base: str, patches: list[str]) -> list[str]:
    return patches


def test_a_directory_of_its_own(shared: flamepy.Session) -> None:  # 1, 2
    first, second = _about(shared), _about(shared)
    assert Path(first["directory"]).is_absolute()
    if first["pid"] == second["pid"]:
        assert second["num_calls"] == first["num_calls"] + 1


@pytest.fixture(scope="module")
def instances(target: Target, stock_client: None) -> Iterator[dict[str, str]]:
    names = {kind: f"conformance-{kind}-{uuid.uuid4().hex[:8]}" for kind in ("plain", "async", "alone")}
    for kind, name in names.items():
        flamepy.register_application(name, target.service(INSTANCE, kind))
    yield names
    for name in names.values():
        flamepy.unregister_application(name)
        cache.delete_objects(f"{name}/*")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_instances_with_a_parameter(instances: dict[str, str], kind: str) -> None:  # 7
    with ServiceSession(instances[kind]) as session:
        for request in ("text", 7, None, {"a": [1, 2]}, b"bytes"):
            answer = within(lambda request=request: session.invoke(request))
            assert answer == {"request": request, "kind": type(request).__name__}
        with pytest.raises(flamepy.FlameError):
            within(lambda: session.invoke("fail"))
        assert session.context() is None


def test_an_instance_without_a_parameter(instances: dict[str, str]) -> None:  # 7
    with ServiceSession(instances["alone"]) as session:
        assert within(lambda: session.invoke("ignored")) == "no parameter"


def test_context(instances: dict[str, str]) -> None:  # 8, 9
    with ServiceSession(instances["plain"], ctx={"turns": ["a"]}) as session:
        assert session.context() == {"turns": ["a"]}
        assert within(lambda: session.invoke("context")) == {"turns": ["a"]}
        assert within(lambda: session.invoke(("replace", {"turns": ["a", "b"]}))) is None
        assert session.context() == {"turns": ["a", "b"]}
        again = ServiceSession(session_id=session.id())
        assert within(lambda: again.invoke("context")) == {"turns": ["a", "b"]}
    for arguments in ({}, {"name": "x", "session_id": "y"}):
        with pytest.raises(ValueError, match="name"):
            ServiceSession(**arguments)
