"""Pinned behaviour of the cluster's pure decisions.

1. Resources are read in the cluster's notation; what is not understood is an error that shows the form.
2. Executors are made one per call in whole batches, between minimum and maximum; minimum and batches all together.
3. ``uv run ... python -m x`` becomes the executors' interpreter; other commands stay, with variables filled in.
4. Waiting for an executor ends when the cluster gave up, or when bind failures have gone on for a while with nothing
   running; progress clears what was before it.
5. Session names hold the run and the service, and only characters that the engine takes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.cluster import wire
from seeker.cluster.bind_watch import BindWatch
from seeker.cluster.local.launch import RUNNER_ARGUMENTS, RUNNER_COMMAND, command_line
from seeker.cluster.local.plan import next_batch
from seeker.cluster.local.records import StateError
from seeker.cluster.local.scheduler import standing_of
from seeker.cluster.local.state import State
from seeker.cluster.opening import session_name
from seeker.cluster.resources import Resources, parse_resources
from seeker.errors import ConfigError


def test_resources() -> None:
    assert parse_resources("cpu=8,mem=64g,gpu=1") == Resources(8, 64 * 2**30, 1)
    assert parse_resources("memory=512MiB") == Resources(1, 512 * 2**20, 0)
    assert parse_resources("") == Resources(1, 2**30, 0)
    for bad in ("cpu=two", "cores=2", "cpu=2g", "mem"):
        with pytest.raises(ConfigError, match="cpu=N"):
            parse_resources(bad)
    with pytest.raises(ConfigError, match="mem is there twice"):
        parse_resources("mem=1g,cpu=1,memory=2g")


def _session(calls: int, minimum: int, maximum: int | None, batch: int):
    state = State()
    state.register("app", wire.types.ApplicationSpec(shim=0))
    spec = wire.types.SessionSpec(application="app", min_instances=minimum, max_instances=maximum, batch_size=batch)
    session = state.create_session("s", spec)
    for _ in range(calls):
        session.submit(b"")
    return session


def _next_batch(calls: int, minimum: int, maximum: int | None, batch: int, held: int) -> int:
    return next_batch(replace(standing_of(_session(calls, minimum, maximum, batch)), held=held))


@pytest.mark.parametrize(
    ("calls", "minimum", "maximum", "batch", "held", "expected"),
    [
        (0, 0, None, 1, 0, 0),
        (3, 0, None, 1, 0, 1),
        (3, 0, 2, 1, 2, 0),
        (0, 2, None, 1, 0, 2),
        (0, 2, None, 1, 1, 1),
        (5, 2, None, 1, 2, 1),
        (0, 4, 4, 4, 0, 4),
        (1, 4, 4, 4, 3, 1),
        (3, 0, None, 2, 0, 2),
        (1, 0, None, 2, 0, 0),
    ],
)
def test_next_batch(calls: int, minimum: int, maximum: int | None, batch: int, held: int, expected: int) -> None:
    assert _next_batch(calls, minimum, maximum, batch, held) == expected


@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_batches_end_at_whole_batches_within_the_maximum(calls: int, low: int, more: int, batch: int) -> None:
    minimum, maximum = low * batch, (low + more) * batch
    held = 0
    while (new := _next_batch(calls, minimum, maximum or None, batch, held)) > 0:
        held += new
        assert held % batch == 0
    assert held >= minimum
    assert maximum == 0 or held <= maximum


def test_batch_alignment_is_checked() -> None:
    with pytest.raises(StateError, match="multiples"):
        _session(0, 3, None, 2)


def test_commands() -> None:
    stock = wire.types.ApplicationSpec(command=RUNNER_COMMAND, arguments=RUNNER_ARGUMENTS)
    assert command_line(stock, {}, "/venv/python") == ("/venv/python", "-m", "flamepy.runner.runpy")
    script = wire.types.ApplicationSpec(command="uv", arguments=["run", "--with", "pip", "service.py", "--x"])
    assert command_line(script, {}, "/venv/python") == ("/venv/python", "service.py", "--x")
    own = wire.types.ApplicationSpec(command="${ROOT}/bin/serve", arguments=["${PORT}"])
    assert command_line(own, {"ROOT": "/opt", "PORT": "7"}, "/p") == ("/opt/bin/serve", "7")


def _status(codes: list[int], running: int = 0, succeed: int = 0):
    events = [wire.types.Event(code=code, message=f"event {place}") for place, code in enumerate(codes)]
    return wire.types.SessionStatus(events=events, running=running, succeed=succeed)


def test_bind_watch() -> None:
    watch = BindWatch()
    assert watch.observe(_status([]), 0.0) is None
    assert watch.observe(_status([1001]), 1.0) is None
    assert watch.observe(_status([1001, 1001]), 4.9) is None
    assert watch.observe(_status([1001, 1001]), 5.1) == "event 1"
    assert BindWatch().observe(_status([1001] * 5 + [1002]), 0.0) == "event 4"


def test_bind_watch_forgets_at_progress() -> None:
    watch = BindWatch()
    assert watch.observe(_status([1001]), 0.0) is None
    assert watch.observe(_status([1001], running=1), 3.0) is None
    assert watch.observe(_status([1001], succeed=1), 9.0) is None
    assert watch.observe(_status([1001], succeed=1), 99.0) is None
    assert watch.observe(_status([1001, 1001], succeed=1), 100.0) is None
    assert watch.observe(_status([1001, 1001], succeed=1), 105.0) == "event 1"


def test_session_names() -> None:
    assert session_name("run 7/../x", "rollouts").startswith("run-7-x-rollouts-")
    assert len(session_name("r" * 500, "t")) <= 128
