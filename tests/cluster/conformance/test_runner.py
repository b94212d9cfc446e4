"""Calls through a Runner.

1.  A function is a service that is called, with positional and named arguments; a class and an object have methods.
2.  Futures and references are arguments: the service receives their values, but not those inside something else.
3.  `get`, `ref` and `wait` of futures, one or many, in the order asked for; `select` yields each once, as it is done.
4.  A result is an object under `<application>/<session>`; None is one.
5.  Large arguments and results travel by reference.
6.  An exception's text is the task's; the service goes on.
7.  `get_data` decodes inputs and outputs.
8.  A service wraps public methods, not those that it has itself; what is no function is not callable.
9.  A class is constructed once in each process, without arguments, and keeps its state there.
10. An object has one process and keeps its state in the object cache.
11. `autoscale` and `warmup`: which combinations there are, and that a warm service has its processes at once.
12. A session context fixes the session's id.
13. Arguments that are bytes of a reference are taken for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flamepy
import pytest
from flamepy.core import cache
from flamepy.core.cache import ObjectRef
from flamepy.runner import ObjectFuture, Runner, SessionContext, get_data

from tests.cluster.conformance import workloads
from tests.cluster.conformance.waiting import executors_of, fails, value_of, values_of, wait_until


@pytest.fixture(scope="module")
def adder(runner: Runner) -> Iterator[Any]:
    service = runner.service(workloads.add, autoscale=False)
    yield service
    service.close()


@pytest.fixture(scope="module")
def describer(runner: Runner) -> Iterator[Any]:
    service = runner.service(workloads.describe, autoscale=False)
    yield service
    service.close()


def test_functions(adder: Any) -> None:  # 1
    assert value_of(adder(1, 2)) == 3
    assert value_of(adder(1, right=2)) == 3
    assert value_of(adder(left="a", right="b")) == "ab"
    assert value_of(adder([1], [2])) == [1, 2]


def test_futures_and_references_as_arguments(runner: Runner, adder: Any) -> None:  # 2
    total = adder(adder(1, 2), right=adder(adder(3, 4), 5))
    assert value_of(total) == 15
    ref = runner.put_object([1, 2])
    assert ref.key.startswith(f"{runner._name}/shared/")
    assert value_of(adder(ref, ref)) == [1, 2, 1, 2]
    assert value_of(adder(left=adder([], ref), right=[3])) == [1, 2, 3]


def test_what_is_resolved(runner: Runner, describer: Any) -> None:  # 2, 13
    ref = runner.put_object(7)
    values, named = value_of(describer(ref, (ref,), [ref], {"a": ref}, ref.encode(), b"bytes", later=ref, text="x"))
    assert values == ["int", "tuple", "list", "dict", "int", "bytes"]
    assert named == {"later": "int", "text": "str"}


def test_get_ref_wait_select(runner: Runner, adder: Any) -> None:  # 3, 4
    futures = [adder(number, number) for number in range(12)]
    values_of(futures)
    assert runner.wait(futures) is None
    assert runner.get(futures) == list(range(0, 24, 2))
    refs = runner.ref(futures)
    assert [cache.get_object(ref) for ref in refs] == list(range(0, 24, 2))
    assert {ref.key.rpartition("/")[0] for ref in refs} == {f"{runner._name}/{adder._session.id}"}
    assert futures[0].wait() is None
    assert (futures[0].get(), futures[0].ref()) == (0, refs[0])
    more = [adder(number, 0) for number in range(20)]
    seen = [future for future in runner.select(more) if isinstance(future, ObjectFuture)]
    assert len(seen) == 20
    assert sorted(value_of(future) for future in seen) == list(range(20))
    assert runner.get([]) == runner.ref([]) == list(runner.select([])) == []


def test_select_yields_what_is_done_first(runner: Runner) -> None:  # 3, 11
    napper = runner.service(workloads.nap, autoscale=False, warmup=1)
    futures = [napper(0.0), napper(0.6), napper(0.0)]
    first = next(iter(runner.select(futures)))
    assert first in (futures[0], futures[2])
    assert [value_of(future)[1] for future in futures] == [0.0, 0.6, 0.0]
    napper.close()


def test_results(runner: Runner) -> None:  # 4, 5
    nothing = runner.service(workloads.nothing, autoscale=False)
    future = nothing()
    assert value_of(future) is None
    assert isinstance(future.ref(), ObjectRef)
    nothing.close()
    zeros = runner.service(workloads.zeros, autoscale=False)
    assert value_of(zeros(8_000_000)) == bytes(8_000_000)
    zeros.close()


def test_large_arguments(runner: Runner, describer: Any) -> None:  # 5
    ref = runner.put_object(bytes(8_000_000))
    assert value_of(describer(ref)) == (["bytes"], {})
    with pytest.raises(flamepy.FlameError, match="failed to create task"):
        describer(bytes(4_200_000))


def test_errors(adder: Any) -> None:  # 6
    fails(adder(1, "x"), "unsupported operand")
    fails(adder(1), "missing 1 required positional argument")
    fails(adder(ObjectRef("grpc://127.0.0.1:1", "a/b/c"), 1), "")
    assert value_of(adder(1, 1)) == 2


def test_get_data(adder: Any) -> None:  # 7
    future = adder(20, right=22)
    assert value_of(future) == 42
    task = adder._session.get_task(future._future._task_id)
    given, made = get_data(task.input), get_data(task.output)
    assert (given["type"], given["method"], given["args"], given["kwargs"]) == ("input", None, (20,), {"right": 22})
    assert (made["type"], made["result"]) == ("output", 42)
    assert made["metadata"]["object_ref_key"] == future.ref().key


def test_classes(runner: Runner) -> None:  # 8, 9
    service = runner.service(workloads.Counter, autoscale=False, warmup=1)
    for hidden in ("_hidden", "label", "total"):
        assert not hasattr(service, hidden)
    with pytest.raises(TypeError, match="not callable"):
        service()
    by_process: dict[int, list[int]] = {}
    for process, total in values_of([service.where() for _ in range(6)]):
        by_process.setdefault(process, []).append(total)
    assert all(sorted(totals) == list(range(1, len(totals) + 1)) for totals in by_process.values())
    service.close()  # the service's own, not the method of the class
    assert flamepy.get_session(service._session.id).state == flamepy.SessionState.CLOSED


def test_objects(runner: Runner) -> None:  # 10
    service = runner.service(workloads.Counter(100))
    assert values_of([service.add(number) for number in (1, 2, 3)]) == [101, 103, 106]
    with pytest.raises(flamepy.FlameError):
        value_of(service.add("x"))
    assert value_of(service.add(4)) == 110
    context = cache.get_object(ObjectRef.decode(service._session.common_data()))
    import cloudpickle

    assert cloudpickle.loads(context).execution_object.total == 110
    service.close()


@pytest.mark.parametrize(
    ("thing", "arguments"),
    [
        (workloads.Counter(), {"autoscale": True}),
        (workloads.Counter(), {"warmup": 2}),
        (workloads.add, {"warmup": -1}),
    ],
    ids=["object-autoscale", "object-warmup", "negative"],
)
def test_what_there_is_not(runner: Runner, thing: Any, arguments: dict[str, Any]) -> None:  # 11
    with pytest.raises(ValueError, match=r"fixed|warmup"):
        runner.service(thing, **arguments)


@pytest.mark.usefixtures("four_slots")
def test_warm_services(runner: Runner) -> None:  # 11
    wanted = flamepy.ResourceRequirement.from_string("cpu=1,mem=128m")
    service = runner.service(workloads.nap, autoscale=False, warmup=2, resreq=wanted)
    wait_until(lambda: len(executors_of(service._session)) >= 2, "two executors without a call")
    assert [seconds for _, seconds in values_of([service(0.01) for _ in range(4)])] == [0.01] * 4
    service.close()


def test_session_contexts(runner: Runner, name: str) -> None:  # 12
    def answer() -> int:
        return 42

    answer._session_context = SessionContext(session_id=name, application_name="ours")  # type: ignore[attr-defined]
    service = runner.service(answer, autoscale=False)
    assert service._session.id == name
    assert value_of(service()) == 42
    assert flamepy.get_session(name).succeed == 1
    service.close()
    for bad in ("", "x" * 129):
        with pytest.raises(ValueError, match="session_id"):
            SessionContext(session_id=bad)
