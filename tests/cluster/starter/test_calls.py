"""Pinned behaviour of a starter's calls.

1.  A value comes back as the pickle that the service process made, with executor, host and number of the process,
    which stays warm. Text in arguments and values is not looked at: any size that fits a call goes through.
2.  Whatever ends the service process in a call (exit, signal, closed or garbled channel) or in its set-up is reported
    with reason, exit code, signal and last words, and the next call finds a new process. A process that died between
    two calls is replaced without a word.
3.  A constructor or method that raises is reported with type, text and traceback; after a method the process lives on.
4.  What hangs (constructor, method, a stopped process) ends with its deadline; the wait for an earlier call and the
    wait before the executor got the call count.
5.  The process's own processes go with it: children, forks that hold its channel, daemons.
6.  Nothing that is sent as a request makes `call` raise or hang.
7.  ``@about`` tells of the node and starts nothing.
8.  A call through the process costs less than a millisecond.
"""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seeker.cluster.local.cache import ObjectCache
from tests.cluster.conftest import is_running, wait_until
from tests.cluster.starter.conftest import Executor, Session, make_session


@pytest.fixture(scope="module")
def probe(cache: ObjectCache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    session = make_session(cache, tmp_path_factory.mktemp("logs"))
    yield session.executor()
    session.end()


def test_values(probe: Executor) -> None:
    first = probe.call("pid")
    second = probe.call("pid")
    assert first["value"] == second["value"] == probe.pid
    assert (first["executor"], first["set_up_count"]) == ("ex-0", second["set_up_count"])
    assert first["host"]
    for value in (b"", b"x" * 120_000, "ü" * 30_000, {"a": [None, 1.5]}):
        assert probe.value("echo", value) == value
    assert probe.call("echo", b"x" * 140_000)["kind"] == "payload"


@pytest.mark.parametrize(
    ("method", "argument", "text", "exit_code", "signal_name"),
    [
        ("exit", 3, "the service process exited with code 3", 3, ""),
        ("raise_exit", 4, "the service process exited with code 4", 4, ""),
        ("kill", signal.SIGSEGV, "the service process was killed by SIGSEGV", -signal.SIGSEGV, "SIGSEGV"),
        ("kill", signal.SIGRTMIN + 9, "the service process was killed by signal", -signal.SIGRTMIN - 9, "signal 43"),
        ("close_channel", None, "the service process closed its channel", -9, "SIGKILL"),
        ("write_garbage", b"x" * 99, "wrote something else into its channel", -9, "SIGKILL"),
        ("write_garbage", bytes(7) + b"\x03abc", "wrote something else into its channel", -9, "SIGKILL"),
    ],
)
def test_death(probe: Executor, method: str, argument: Any, text: str, exit_code: int, signal_name: str) -> None:
    before = probe.call("pid")
    reply = probe.call(method, *([] if argument is None else [argument]))
    assert reply["kind"] == "died", reply
    assert text in reply["message"]
    assert (reply["exit_code"], reply["signal"]) == (exit_code, signal_name)
    assert "last words" in reply["log"] if method == "exit" else True
    after = probe.call("pid")
    assert after["set_up_count"] == before["set_up_count"] + 1
    assert not is_running(before["value"])


def test_death_between_two_calls(probe: Executor) -> None:
    before = probe.call("pid")
    pid = before["value"]
    probe.value("exit_later", 1.0)
    wait_until(lambda: not is_running(pid), 20, "the process ends")
    after = probe.call("echo", 1)
    assert (after["kind"], after["set_up_count"]) == ("value", before["set_up_count"] + 1), after
    looks = iter([True])  # the first look at it is too early to see its end
    probe.kind.host._process.is_alive = lambda: next(looks, False)
    probe.kind.host._process._process.kill()
    again = probe.call("echo", 1)
    assert (again["kind"], again["set_up_count"]) == ("value", after["set_up_count"] + 1), again


def test_errors(probe: Executor) -> None:
    before = probe.value("pid")
    reply = probe.call("raise_error", "no such thing")
    assert (reply["kind"], reply["type"], reply["message"]) == ("raised", "ValueError", "no such thing")
    assert "services.py" in reply["traceback"]
    assert "no public method '_secret'" in probe.call("_secret")["message"]
    long = probe.call("raise_error", "x" * 100_000)
    assert len(long["message"]) <= 16_000
    assert probe.value("pid") == before


def test_set_up_that_fails(session: Session) -> None:
    raising = session.executor(config={"fail": 1})
    for count in (1, 2):
        reply = raising.call("echo", 1)
        assert (reply["kind"], reply["type"], reply["set_up_count"]) == ("setup", "RuntimeError", count)
        assert reply["message"] == "no engine on this machine"
        assert "services.py" in reply["traceback"]
    missing = session.executor(target="tests.cluster.starter.no_such_module:Service").call("echo", 1)
    assert (missing["kind"], missing["type"]) == ("setup", "ModuleNotFoundError")
    ending = session.executor(config={"exit": 5}).call("echo", 1)
    assert (ending["kind"], ending["exit_code"], ending["log"]) == ("died", 5, "no use\n")
    assert "setting up probe: the service process exited with code 5" in ending["message"]


def test_hanging(session: Session) -> None:
    hanging = session.executor(config={"hang": 1})
    start = time.monotonic()
    reply = hanging.call("echo", 1, seconds=1.0)
    assert (reply["kind"], reply["signal"]) == ("deadline", "SIGKILL")
    assert "setting up probe did not finish within its deadline" in reply["message"]
    executor = session.executor("ex-1")
    for method in ("sleep", "stop"):
        before = executor.value("pid")
        reply = executor.call(method, *([600] if method == "sleep" else []), seconds=0.5)
        assert reply["kind"] == "deadline"
        assert f"probe.{method} did not finish within its deadline and was killed" in reply["message"]
        assert not is_running(before)
    assert time.monotonic() - start < 30


def test_stopped_process_takes_a_large_call(session: Session) -> None:
    executor = session.executor()
    os.kill(executor.value("pid"), signal.SIGSTOP)
    reply = executor.call("echo", b"x" * 5_000_000, seconds=0.5)
    assert reply["kind"] == "deadline"


def test_waiting_counts(probe: Executor) -> None:
    before = probe.value("pid")
    late = probe.call("echo", 1, end=time.time() - 1)
    assert late["kind"] == "deadline"
    assert probe.value("pid") == before
    earlier = probe.begin("sleep", 1.5)
    wait_until(lambda: not earlier.done() and earlier.running(), 10, "the first call runs")
    time.sleep(0.1)
    reply = probe.call("echo", 1, seconds=0.3)
    assert reply["kind"] == "deadline"
    assert "executor ex-0 had an earlier call" in reply["message"]
    assert earlier.result()["kind"] == "value"


def test_its_processes_go_with_it(probe: Executor) -> None:
    pids = [probe.value(method) for method in ("start_child", "start_fork", "start_daemon")]
    assert all(map(is_running, pids))
    start = time.monotonic()
    assert probe.call("kill", signal.SIGKILL)["kind"] == "died"
    assert time.monotonic() - start < 5  # though a fork holds its channel
    assert not any(map(is_running, pids))
    pids = [probe.value(method) for method in ("start_child", "start_fork", "start_daemon")]
    pids.append(probe.value("start_daemon"))
    assert probe.call("sleep", 600, seconds=0.3)["kind"] == "deadline"
    assert not any(map(is_running, pids))


def test_about_starts_nothing(session: Session) -> None:
    executor = session.executor()
    about = executor.value("@about")
    assert about["service_pid"] is None
    assert (about["executor"], about["flamepy"]) == ("ex-0", "0.6.0")
    assert abs(about["time"] - time.time()) < 60
    assert about["memory_bytes"] > 2**28
    assert executor.call("@no_such")["kind"] == "starter"


def test_a_setup_that_lacks_everything() -> None:
    executor = Executor("ex-0", {})
    assert executor.call("echo", 1)["kind"] == "starter"
    assert executor.send(None)["kind"] == "starter"
    executor.end()


_plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
_odd = st.one_of(_plain, st.lists(_plain, max_size=3), st.dictionaries(st.text(), _plain, max_size=3))
_names = st.sampled_from(["method", "arguments", "seconds", "end", "call", "generation", "barrier"])
_methods = st.sampled_from(["echo", "__init__", "@join", "@about", "@", "", "context", "no such method"])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.one_of(_names, st.text()), _odd), _methods, st.one_of(st.binary(), st.just(None)))
def test_any_request_is_answered(probe: Executor, fields: dict[str, Any], method: str, arguments: bytes | None) -> None:
    requests: list[Any] = [fields, list(fields), {"method": method, "arguments": arguments, "seconds": 0.05, **fields}]
    good = {"method": method, "arguments": arguments or b"", "seconds": 0.05}
    for request in [*requests, good]:
        if isinstance(request, dict) and isinstance(request.get("seconds"), int | float):
            request["seconds"] = min(request["seconds"], 0.05)
        reply = probe.send(request)
        assert isinstance(reply["kind"], str)
        assert reply["kind"] == "value" or reply["message"]
        pickle.dumps(reply)


def test_a_call_costs_little(probe: Executor) -> None:
    probe.value("echo", 1)
    request = {"method": "echo", "arguments": pickle.dumps((("x",), {})), "seconds": 30.0}
    starter = probe.kind()
    seconds: list[float] = []
    for _ in range(300):
        start = time.perf_counter()
        assert starter.call(request)["kind"] == "value"
        seconds.append(time.perf_counter() - start)
    assert statistics.quantiles(seconds, n=10)[0] < 1e-3  # the quickest tenth: the machine may have other work


def test_logs_are_where_the_driver_looks_and_bounded(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seeker.cluster.starter import log

    monkeypatch.setattr(log, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(log, "KEPT_BYTES", 100_000)
    executor = session.executor()
    executor.value("print_much", 3_000_000)
    path = tmp_path / "probe-ex-0.log"
    wait_until(lambda: path.stat().st_size == 0, 20, "the log is started anew")
    wait_until(lambda: (tmp_path / "probe-ex-0.log.1").stat().st_size == 100_000, 20, "its end is kept")
    reply = executor.call("exit", 1)
    assert reply["log"] == "last words\n"
    elsewhere = session.executor("ex-1", log_dir="/no/such/folder")
    monkeypatch.chdir(tmp_path)
    elsewhere.value("echo", 1)
    assert (tmp_path / "probe-ex-1.log").exists()
    assert not os.path.exists("/no/such")
