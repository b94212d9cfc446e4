"""Doing many calls until each has succeeded or been given up: the one place where infrastructure trouble is retried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seeker import errors
from seeker.cluster.client import Call, ObjectHandle, ObjectStore, gather
from seeker.config import RunConfig
from seeker.errors import CallError, ClusterError, InfrastructureError, LostStepError
from seeker.runs import EventLog, Json
from seeker.types import Question

GRACE_S = 60.0  # each call ends by its own deadline; this one only guards against a call that never does
# Raised by the machine under a service rather than by its code.
MACHINE_ERRORS = frozenset(
    {"ConnectionError", "ConnectionResetError", "BrokenPipeError", "TimeoutError", "MemoryError"}
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The questions of one call. Example: ``Chunk("000", questions)``, or ``Chunk("000q03", (question,))`` alone."""

    name: str
    questions: tuple[Question, ...]
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often a chunk is tried, and how long one try may take (waiting for a free executor included).

    The first repetition comes at once; those after it wait `pause_s` more each time, give or take a half.
    """

    max_attempts: int
    deadline_s: float
    pause_s: float

    @staticmethod
    def of(config: RunConfig, num_chunks: int) -> Attempts:
        """The configured limits; a call may have to wait for those before it on the same executor."""
        turns = -(-num_chunks // config.cluster.rollouts)
        deadline_s = config.rollout.call_deadline_s * max(1, turns)
        return Attempts(config.rollout.max_call_attempts, deadline_s, config.cluster.retry_pause_s)


def is_infrastructure(error: InfrastructureError) -> bool:
    """False for a remote error of our own code (a bug, a bad configuration): repeating it cannot help."""
    if not isinstance(error, CallError) or not error.remote_type:
        return True
    name = error.remote_type.rpartition(".")[2]
    ours = getattr(errors, name, None)
    return name in MACHINE_ERRORS or (isinstance(ours, type) and issubclass(ours, InfrastructureError))


def make_chunks(questions: Sequence[Question], size: int) -> list[Chunk]:
    """The calls of a step. They depend on the questions alone, never on who executes them."""
    starts = range(0, len(questions), size)
    return [Chunk(f"{number:03d}", tuple(questions[start : start + size])) for number, start in enumerate(starts)]


def run_chunks(
    chunks: Sequence[Chunk],
    submit: Callable[[Chunk], Call],
    finish: Callable[[Chunk, Any], None],
    check: Callable[[], object],
    attempts: Attempts,
    events: EventLog,
    about: Mapping[str, Any],
    on_done: Callable[[int], None] = lambda num_questions: None,
) -> list[Question]:
    """Call `submit` for each chunk and `finish` with each result (whose object may be lost, too: a failed call).

    A failed call is done again whole, up to the limit. Then each of its questions gets calls of its own, up to the
    limit again, so that one question that always fails does not cost its neighbours. Returns the questions that had
    to be given up: only while `check` finds the service at work, for what fails with the cluster is no question's
    fault. `on_done` hears how many questions each finished call had.

    Raises `LostStepError` when a question would be given up and `check` fails.
    """
    void: list[Question] = []
    pending = {submit(chunk): chunk for chunk in chunks}
    while pending:
        again: dict[Call, Chunk] = {}
        for call in gather(list(pending), deadline_s=attempts.deadline_s + GRACE_S):
            chunk = pending[call]
            try:
                finish(chunk, call.result())
                on_done(len(chunk.questions))
            except InfrastructureError as error:
                if not is_infrastructure(error):
                    raise
                told = {**about, "call": chunk.name, "attempt": chunk.attempt, "error": str(error)[:500]}
                retries = _next_attempts(chunk, attempts.max_attempts)
                if not retries:
                    _check_service(check, chunk, error)
                    void.extend(chunk.questions)
                events.record("call_retried" if retries else "group_void", **told)
                time.sleep(_pause_s(retries, attempts))
                again.update({submit(retry): retry for retry in retries})
        pending = again
    return void


def take_trajectories(objects: ObjectStore, result: Json, policy_version: int, events: EventLog) -> bytes:
    """The trajectories of a finished call; their object is deleted, for from here on the run directory holds them."""
    if result["load_failed"]:  # the anchor has mended it; that it was needed is infrastructure trouble
        events.record(
            "policy_reloaded", version=policy_version, executor=result["executor"], error=result["load_failed"]
        )
    if result["policy_version"] != policy_version:
        raise ClusterError(f"policy version {policy_version} was asked for, {result['policy_version']} has answered")
    reference = ObjectHandle(**result["trajectories"])
    data = bytes(objects.get(reference))
    objects.delete(reference.key)
    return data


def check_void(what: str, num_void: int, num_asked: int) -> None:
    """A few lost groups are counted; when most are lost, something is broken that a person must mend."""
    if 2 * num_void > num_asked:
        raise LostStepError(
            f"{what}: {num_void} of {num_asked} groups were lost to infrastructure failures; events.jsonl in the run "
            "directory holds the causes. Mend them and start the run again: it goes on here"
        )


def _check_service(check: Callable[[], object], chunk: Chunk, error: InfrastructureError) -> None:
    try:
        check()
    except InfrastructureError as failed:
        raise LostStepError(
            f"call {chunk.name} failed {chunk.attempt} times, the last time: {error}\nand the service does not answer, "
            f"so nothing was given up: {failed}\nMend this and start the run again: it goes on here"
        ) from failed


def _next_attempts(chunk: Chunk, max_attempts: int) -> list[Chunk]:
    """The chunk again; past the limit its questions one by one; past that, nothing."""
    if chunk.attempt < max_attempts:
        return [replace(chunk, attempt=chunk.attempt + 1)]
    if len(chunk.questions) == 1:
        return []
    return [Chunk(f"{chunk.name}q{number:02d}", (question,)) for number, question in enumerate(chunk.questions)]


def _pause_s(retries: Sequence[Chunk], attempts: Attempts) -> float:
    """Seconds before these attempts: none before a second one."""
    waits = max((retry.attempt - 2 for retry in retries), default=0)
    return max(0, waits) * attempts.pause_s * random.uniform(0.5, 1.5)
