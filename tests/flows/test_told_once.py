"""Each error once on a command's terminal, and whole in Prefect's records.

1. A `SeekerError` that passes through a task and two flows is left to the command, which tells it at its end.
2. An unexpected error keeps its traceback, once; the command ends with one line that refers to it.
3. What was left out and is no part of the error that ends the command is told by then: nothing gets lost.
4. Prefect's "Crash detected" lines of Ctrl-C and SIGTERM are left out; those of any other crash are not.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow, task

from flows import commands
from flows.cli import main
from flows.told_once import ToldOnce, telling_errors_once
from seeker.errors import ClusterError, ConfigError, SeekerError


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    """What Prefect would print."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)


@task(retries=2, retry_condition_fn=lambda *_: False)  # as the phases of a step
def break_down(error: Exception) -> None:
    raise error


@flow
def inner(error: Exception) -> None:
    break_down(error)


@flow
def outer(error: Exception) -> None:
    inner(error)


def command_that_fails(error: Exception) -> Any:
    def command(_arguments: object) -> None:
        with telling_errors_once():
            outer(error)

    return command


@pytest.mark.parametrize(("error", "code"), [(ConfigError("a bad value"), 2), (ClusterError("no executor"), 1)])
@pytest.mark.usefixtures("prefect_server")
def test_an_error_of_ours(
    error: SeekerError,
    code: int,
    terminal: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "show", command_that_fails(error))
    assert main(["show", "x"]) == code
    printed = terminal.getvalue() + capsys.readouterr().err
    assert printed.count(str(error)) == 1
    assert f"seeker: error: {error}\n" in printed
    assert "Traceback" not in printed


@pytest.mark.usefixtures("prefect_server")
def test_an_unexpected_error(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "show", command_that_fails(ZeroDivisionError("a bug")))
    assert main(["show", "x"]) == 1
    assert terminal.getvalue().count("Traceback (most recent call last)") == 1
    assert "in break_down" in terminal.getvalue()
    assert capsys.readouterr().err == "seeker: unexpected ZeroDivisionError: a bug (its traceback is above)\n"


def record(message: str, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("prefect.flow_runs", logging.ERROR, "", 0, message, None, info)


def test_what_was_left_out_is_told_at_the_end() -> None:
    errors = ToldOnce()
    lost, cause, last = ClusterError("lost"), ClusterError("cause"), ConfigError("last")
    for error in (lost, cause, lost, last):
        told = record("Task run failed", error)
        assert not errors.filter(told)
        assert told.exc_info is not None  # other handlers write the record too
    last.__cause__ = cause
    assert errors.untold(last) == [lost]
    assert errors.untold(None) == [lost, cause, last]
    for error, passes in (("ClusterError: lost", False), ("LostStepError: step 3", False), ("OSError: disk", True)):
        assert errors.filter(record(f"Finished in state Failed('Task run encountered an exception {error}')")) is passes


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        ("Crash detected! Execution was aborted by an interrupt signal.", False),
        ("Finished in state Crashed('Execution was aborted by a termination signal.')", False),
        ("Crash detected! Execution was interrupted by an unexpected exception: MemoryError: ", True),
        ("Finished in state Completed()", True),
    ],
)
def test_ends_by_signal(message: str, passes: bool) -> None:
    assert ToldOnce().filter(record(message)) is passes
