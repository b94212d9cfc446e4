"""Doing calls again.

1. A call that fails for infrastructure is done again whole; its result counts once; the retry is an event.
2. Past the limit each question gets calls of its own: a question that always fails costs its group only.
3. A remote error of our own code is not repeated: it is raised.
4. Chunks depend on the questions alone.
5. Nothing is given up when the service does not answer: a cluster that dies while one call of two is under way costs
   the step, not half its groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seeker.errors import CallError, ClusterError, DeadlineError, InfrastructureError, LostStepError
from seeker.runs import EventLog
from seeker.types import Question
from tasks.calls import Attempts, Chunk, is_infrastructure, make_chunks, run_chunks
from tests.flows.fake_cluster import ended_call

QUESTIONS = tuple(Question(f"q{number}", "Who?", ("Ama",)) for number in range(6))


class Scripted:
    """Submits calls that fail as scripted: by question id, so many times (-1: always)."""

    def __init__(self, failures: dict[str, int], error: InfrastructureError) -> None:
        self.failures = dict(failures)
        self.error = error
        self.submitted: list[tuple[str, int]] = []
        self.finished: dict[str, Any] = {}
        self.checks: list[InfrastructureError | None] = []  # what the service's checks come to; then nothing
        self.num_checks = 0

    def submit(self, chunk: Chunk) -> Any:
        self.submitted.append((chunk.name, chunk.attempt))
        for question in chunk.questions:
            if self.failures.get(question.id, 0) != 0:
                self.failures[question.id] -= 1
                return ended_call(chunk.name, error=self.error)
        return ended_call(chunk.name, value=[question.id for question in chunk.questions])

    def finish(self, chunk: Chunk, result: Any) -> None:
        assert chunk.name not in self.finished
        self.finished[chunk.name] = result

    def check(self) -> None:
        self.num_checks += 1
        if self.checks and (error := self.checks.pop(0)):
            raise error

    def run(self, path: Path) -> tuple[list[Question], EventLog]:
        events = EventLog(path / "events.jsonl")
        chunks = make_chunks(QUESTIONS, 3)
        attempts = Attempts(3, 10.0, pause_s=0.0)
        return run_chunks(chunks, self.submit, self.finish, self.check, attempts, events, {"step": 0}), events


def test_a_failed_call_is_done_again_whole(tmp_path: Path) -> None:
    scripted = Scripted({"q4": 2}, DeadlineError("late"))
    void, events = scripted.run(tmp_path)
    assert not void
    assert scripted.finished == {"000": ["q0", "q1", "q2"], "001": ["q3", "q4", "q5"]}
    assert scripted.submitted == [("000", 1), ("001", 1), ("001", 2), ("001", 3)]
    assert [(event["event"], event["call"], event["attempt"]) for event in events.read()] == [
        ("call_retried", "001", 1),
        ("call_retried", "001", 2),
    ]


def test_a_question_that_always_fails_costs_its_group_only(tmp_path: Path) -> None:
    scripted = Scripted({"q4": -1}, CallError("no answer", "RetrievalError"))
    void, events = scripted.run(tmp_path)
    assert [question.id for question in void] == ["q4"]
    assert scripted.finished == {"000": ["q0", "q1", "q2"], "001q00": ["q3"], "001q02": ["q5"]}
    assert [name for name, _ in scripted.submitted].count("001q01") == 3
    assert events.count("group_void") == scripted.num_checks == 1


def test_a_question_alone_is_not_given_up_for_one_more_loss(tmp_path: Path) -> None:
    scripted = Scripted({"q4": 5}, DeadlineError("late"))
    void, events = scripted.run(tmp_path)
    assert not void
    assert sorted(scripted.finished) == ["000", "001q00", "001q01", "001q02"]
    assert events.count("call_retried") == 5


def test_nothing_is_given_up_with_the_cluster(tmp_path: Path) -> None:
    scripted = Scripted({"q3": -1, "q4": -1, "q5": -1}, ClusterError("connection refused"))
    scripted.checks = [ClusterError("the cluster cannot be reached")]
    with pytest.raises(LostStepError, match=r"call 001q0. failed 3 times.*refused\n.*nothing was given up.*be reached"):
        scripted.run(tmp_path)
    assert list(scripted.finished) == ["000"]
    assert EventLog(tmp_path / "events.jsonl").count("group_void") == 0


def test_an_error_of_our_own_is_raised_at_once(tmp_path: Path) -> None:
    scripted = Scripted({"q0": -1}, CallError("boom", "TypeError", "Traceback …"))
    with pytest.raises(CallError, match="boom"):
        scripted.run(tmp_path)
    assert scripted.submitted == [("000", 1), ("001", 1)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClusterError("gone"), True),
        (CallError("process ended"), True),
        (CallError("x", "seeker.errors.RetrievalError"), True),
        (CallError("x", "ConnectionResetError"), True),
        (CallError("x", "PolicyError"), False),
        (CallError("x", "ZeroDivisionError"), False),
    ],
)
def test_which_failures_are_infrastructure(error: InfrastructureError, expected: bool) -> None:
    assert is_infrastructure(error) is expected


def test_chunks_depend_on_the_questions_alone() -> None:
    chunks = make_chunks(QUESTIONS, 4)
    assert [(chunk.name, len(chunk.questions)) for chunk in chunks] == [("000", 4), ("001", 2)]
