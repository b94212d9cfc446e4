"""Evaluation: one trajectory a question at one policy version, its scores and trajectories in the run directory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prefect import task

from seeker.actions import STOP_STRINGS
from seeker.cluster.client import Call, Cluster, Service
from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.evaluation import summarize
from seeker.prompt import prompt_digest
from seeker.runs import EventLog, Json, write_atomic, write_json
from seeker.runs.files import read_sealed, sealed
from seeker.trajectories import decode_trajectories, encode_trajectories
from seeker.types import Question, Trajectory
from tasks.calls import Attempts, Chunk, check_void, make_chunks, run_chunks, take_trajectories
from tasks.cluster import Session, check_rollouts, current_session
from tasks.naming import may_retry

Mode = Literal["greedy", "sampled"]
MAX_TRIES = 3  # of an evaluation that lacks questions; what fails then, fails always


@dataclass(frozen=True, slots=True)
class Candidate:
    """The policy to evaluate: a published version, in the store or in a run directory, or the policy as loaded.

    Example: ``Candidate(version=10, manifest={...}, policy_folder="runs/demo/policy")``.
    """

    version: int
    manifest: Json | None
    policy_folder: str | None = None
    folder_digest: str | None = None  # of a policy without a manifest

    @property
    def digest(self) -> str | None:
        return self.folder_digest if self.manifest is None else self.manifest["digest"]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions and what they are called. Example: ``QuestionSet("heldout", questions)``."""

    name: str
    questions: tuple[Question, ...]

    @property
    def digest(self) -> str:
        told = "\n".join(f"{question.id}\t{question.text}\t{question.answers}" for question in self.questions)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where an evaluation runs and where it is written."""

    config: RunConfig
    cluster: Cluster
    rollouts: Service
    root: Path  # run directory, or the folder of a plain policy's evaluations
    facts: Json  # digests of corpus and index, for the protocol
    on_done: Callable[[int], None] = lambda num_questions: None  # hears how many questions each finished call had


@task(name="evaluate", task_run_name="evaluate-{version:06d}-{mode}", retries=2, retry_delay_seconds=[1, 5],
      retry_condition_fn=may_retry, persist_result=False)  # fmt: skip
def evaluate_version(version: int, mode: Mode) -> Json:
    """Evaluate the session's policy on the held-out questions; at once when that was done before."""
    session = current_session()
    return evaluate_policy(session_bench(session), Candidate(version, session.policy), heldout_set(session), mode)


def heldout_set(session: Session) -> QuestionSet:
    return QuestionSet("heldout", tuple(session.heldout_questions[: session.config.evaluation.num_questions]))


def session_bench(session: Session) -> Bench:
    facts = session.run.describe().get("digests", {})
    return Bench(session.config, session.cluster, session.rollouts, session.run.root, facts)


def evaluate_policy(bench: Bench, candidate: Candidate, questions: QuestionSet, mode: Mode) -> Json:
    """The evaluation, from its file when it was done before with the same policy, questions and protocol."""
    identity = evaluation_identity(bench.config, bench.facts, candidate, questions, mode)
    before = stored_evaluation(bench.root, identity)
    if before is not None and is_final(before):
        return before
    path = evaluation_path(bench.root, candidate.version, questions.name, mode)
    started = time.perf_counter()
    trajectories = _roll_out(bench, candidate, questions, mode)
    answered = [question for question in questions.questions if question.id in trajectories]
    ordered = [trajectories[question.id] for question in answered]
    write_atomic(path.with_suffix(".parquet"), encode_trajectories(ordered))
    evaluation = {
        **identity,
        **summarize(answered, ordered),
        "num_void": len(questions.questions) - len(answered),
        "tries": 1 if before is None else before.get("tries", 1) + 1,
        "trajectories": path.with_suffix(".parquet").name,
        "seconds": time.perf_counter() - started,
    }
    write_json(path, sealed(evaluation))
    return evaluation


def evaluation_identity(
    config: RunConfig, facts: Json, candidate: Candidate, questions: QuestionSet, mode: Mode
) -> Json:
    """What makes two evaluations the same one: policy, questions and everything that moves a score."""
    return {
        "policy_version": candidate.version,
        "policy_digest": candidate.digest,
        "set": questions.name,
        "mode": mode,
        "questions_digest": questions.digest,
        "protocol": resolved_protocol(config, facts, mode, len(questions.questions)),
    }


def stored_evaluation(root: Path, identity: Json) -> Json | None:
    """The evaluation with this identity, when it was done before and is whole."""
    path = evaluation_path(root, identity["policy_version"], identity["set"], identity["mode"])
    try:
        before = read_sealed(path) if path.is_file() else {}
    except RunDirectoryError:
        return None  # it is made again, in its place
    return before if before and all(before.get(name) == value for name, value in identity.items()) else None


def is_final(evaluation: Json) -> bool:
    """False for one that lost questions to infrastructure failures, which is done again, a few times."""
    return evaluation["num_void"] == 0 or evaluation.get("tries", 1) >= MAX_TRIES


def evaluation_path(root: Path, version: int, name: str, mode: Mode) -> Path:
    return root / "evaluations" / f"{version:06d}-{name}-{mode}.json"


def resolved_protocol(config: RunConfig, facts: Json, mode: Mode, n: int) -> Json:
    """Everything that moves a score without the policy being better."""
    rollout = config.rollout
    return {
        "prompt_digest": prompt_digest(config.prompt),
        "stop_strings": list(STOP_STRINGS),
        "max_searches": rollout.max_searches,
        "top_k": rollout.top_k,
        "max_malformed": rollout.max_malformed,
        "max_turn_tokens": rollout.max_turn_tokens,
        "max_observation_tokens": rollout.max_observation_tokens,
        "max_trajectory_tokens": rollout.max_trajectory_tokens,
        "corpus_digest": facts.get("corpus"),
        "index": config.index.model_dump(mode="json"),
        "decoding": {"mode": mode, "temperature": None if mode == "greedy" else rollout.temperature},
        "seed": None if mode == "greedy" else config.seed,
        "n": n,
    }


def _roll_out(bench: Bench, candidate: Candidate, questions: QuestionSet, mode: Mode) -> dict[str, Trajectory]:
    """One trajectory a question, by question id."""
    found: dict[str, Trajectory] = {}
    chunks = _even_chunks(questions.questions, bench.config.rollout.slots)
    attempts = Attempts.of(bench.config, len(chunks))

    def submit(chunk: Chunk) -> Call:
        return bench.rollouts.call(
            "rollout",
            [asdict(question) for question in chunk.questions],
            step=candidate.version,
            manifest=candidate.manifest,
            greedy=mode == "greedy",
            group_size=1,
            policy_folder=candidate.policy_folder,
            deadline_s=attempts.deadline_s,
        )

    events = EventLog(bench.root / "events.jsonl")

    def finish(_chunk: Chunk, result: Json) -> None:
        data = take_trajectories(bench.cluster.objects, result, candidate.version, events)
        found.update((trajectory.question_id, trajectory) for trajectory in decode_trajectories(data))

    about = {"evaluation": candidate.version, "mode": mode}
    check = partial(check_rollouts, bench.rollouts, attempts.deadline_s)
    void = run_chunks(chunks, submit, finish, check, attempts, events, about, bench.on_done)
    check_void(f"evaluation of policy version {candidate.version}", len(void), len(questions.questions))
    return found


def _even_chunks(questions: Sequence[Question], slots: int) -> list[Chunk]:
    """Calls of nearly equal size, none larger than the sampler's batch."""
    num_calls = max(1, -(-len(questions) // slots))
    return make_chunks(questions, max(1, -(-len(questions) // num_calls)))
