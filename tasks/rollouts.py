"""The rollout phase: which questions, one call per chunk, each finished call on the disk at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from seeker.cluster.client import Call
from seeker.errors import ConfigError, RunDirectoryError
from seeker.runs import FileRef, Json, RunDirectory, is_intact, write_file, write_json
from seeker.runs.files import read_sealed, sealed
from seeker.types import Question
from tasks.calls import Attempts, Chunk, check_void, make_chunks, run_chunks, take_trajectories
from tasks.cluster import Session, check_rollouts, current_session
from tasks.naming import phase_task


@phase_task("rollout")
def rollout(run_key: str, lineage: int, step: int) -> Json:
    """Trajectories of the step's questions: ``{"calls": [file references], "num_void": 0, "metrics": {...}}``."""
    return produce_rollouts(current_session(), step)


def step_questions(questions: Sequence[Question], per_step: int, step: int, seed: int) -> list[Question]:
    """The questions of a step: a seeded permutation per epoch, from (seed, step) alone.

    An epoch ends where its rest is too small for a step, so that no question is twice in one step.
    """
    steps_per_epoch = len(questions) // per_step
    if steps_per_epoch == 0:
        raise ConfigError(
            f"rollout.prompts_per_step is {per_step}, but there are {len(questions)} training questions; "
            "use fewer questions in a step"
        )
    epoch, position = divmod(step, steps_per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(len(questions))
    return [questions[int(index)] for index in order[position * per_step : (position + 1) * per_step]]


def produce_rollouts(session: Session, step: int) -> Json:
    """Do the step's rollout calls; calls that finished before an interruption are taken from the step's folder."""
    started = time.perf_counter()
    config, run = session.config, session.run
    questions = step_questions(session.train_questions, config.rollout.prompts_per_step, step, config.seed)
    chunks = make_chunks(questions, config.rollout.prompts_per_task)
    found = _finished_calls(run, chunks, step)
    waiting = [chunk for chunk in chunks if chunk.name not in found]
    attempts = Attempts.of(config, len(waiting))

    def submit(chunk: Chunk) -> Call:
        return session.rollouts.call(
            "rollout",
            [asdict(question) for question in chunk.questions],
            step=step,
            manifest=session.policy,
            greedy=False,
            group_size=config.rollout.group_size,
            deadline_s=attempts.deadline_s,
        )

    def finish(chunk: Chunk, result: Json) -> None:
        data = take_trajectories(session.cluster.objects, result, step, run.events)
        found[chunk.name] = _store_call(run, chunk, step, data, result["report"])

    check = partial(check_rollouts, session.rollouts, attempts.deadline_s)
    void = run_chunks(waiting, submit, finish, check, attempts, run.events, {"step": step})
    check_void(f"step {step}", len(void), len(questions))
    calls = [found[name] for name in sorted(found)]
    seconds = time.perf_counter() - started
    return {
        "calls": [call["file"] for call in calls],
        "num_void": len(void),
        "metrics": _report_metrics([call["report"] for call in calls], seconds, config.cluster.rollouts),
        "seconds": seconds,
    }


def _finished_calls(run: RunDirectory, chunks: Sequence[Chunk], step: int) -> dict[str, Json]:
    """What an interrupted attempt at this step left whole, by call."""
    found: dict[str, Json] = {}
    for chunk in chunks:
        marker = _finished_call(run, chunk, step)
        if marker is not None:
            found[chunk.name] = marker
            run.events.record("call_reused", step=step, call=chunk.name)
    return found


def _finished_call(run: RunDirectory, chunk: Chunk, step: int) -> Json | None:
    path = run.root / _call_path(run, chunk, step, "json")
    if not path.is_file():
        return None
    try:
        marker = read_sealed(path)
    except RunDirectoryError:
        return None  # damaged: the call is done again
    same = marker["questions"] == [question.id for question in chunk.questions] and marker["policy_version"] == step
    return marker if same and is_intact(run.root, FileRef.from_json(marker["file"])) else None


def _store_call(run: RunDirectory, chunk: Chunk, step: int, data: bytes, report: Json) -> Json:
    """Write the trajectories, then the marker that makes the call a finished one."""
    ref = write_file(run.root, _call_path(run, chunk, step, "parquet"), data)
    marker = {
        "questions": [question.id for question in chunk.questions],
        "policy_version": step,
        "lineage": run.lineage,
        "file": ref.to_json(),
        "report": report,
    }
    write_json(run.root / _call_path(run, chunk, step, "json"), sealed(marker))
    return marker


def _call_path(run: RunDirectory, chunk: Chunk, step: int, ending: str) -> str:
    return f"{run.step_path(step)}/rollouts/call-{chunk.name}.{ending}"


def _report_metrics(reports: Sequence[Json], seconds: float, executors: int) -> Json:
    totals: Counter[str] = Counter()
    for report in reports:
        totals.update(report)
    return {
        "tokens/generated": totals["generated_tokens"],
        "tokens/prefilled": totals["prefilled_tokens"],
        "rollout/sampler_busy_share": totals["sampler_s"] / (seconds * executors),
        "rollout/retrieval_s": totals["retrieval_s"],
        "rollout/cut_observations": totals["num_cut_observations"],
        "rollout/tokens_per_s": totals["generated_tokens"] / seconds,
    }
