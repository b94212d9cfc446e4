"""The rollout phase: which questions, one call per chunk, each finished call on the disk at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from seeker.cluster.objects import ObjectHandle, ObjectStore
from seeker.errors import ConfigError, InfrastructureError
from seeker.runs import FileRef, Json, RunDirectory, is_intact, read_json, write_file, write_json
from seeker.types import Question
from tasks.calls import Attempts, Chunk, make_chunks, run_chunks
from tasks.cluster import Session, current_session
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
    folder = f"{run.step_path(step)}/rollouts"
    found: dict[str, Json] = {}
    chunks = make_chunks(questions, config.rollout.prompts_per_task)
    for chunk in chunks:
        marker = _finished_call(run, folder, chunk, step)
        if marker is not None:
            found[chunk.name] = marker
            run.events.record("call_reused", step=step, call=chunk.name)

    def finish(chunk: Chunk, result: Json) -> None:
        data = take_object(session.cluster.objects, result["trajectories"])
        found[chunk.name] = _store_call(run, folder, chunk, step, data, result["report"])

    waiting = [chunk for chunk in chunks if chunk.name not in found]
    attempts = Attempts.of(config, len(waiting))

    def submit(chunk: Chunk) -> Any:
        return session.rollouts.call(
            "rollout",
            [asdict(question) for question in chunk.questions],
            step=step,
            manifest=session.policy,
            greedy=False,
            group_size=config.rollout.group_size,
            deadline_s=attempts.deadline_s,
        )

    void = run_chunks(waiting, submit, finish, attempts, run.events, {"step": step})
    _check_void(void, questions, step)
    calls = [found[name] for name in sorted(found)]
    seconds = time.perf_counter() - started
    return {
        "calls": [call["file"] for call in calls],
        "num_void": len(void),
        "metrics": _report_metrics([call["report"] for call in calls], seconds, config.cluster.rollouts),
        "seconds": seconds,
    }


def take_object(objects: ObjectStore, handle: Json) -> bytes:
    """The object's bytes; it is deleted, for from here on the run directory holds them."""
    reference = ObjectHandle(**handle)
    data = bytes(objects.get(reference))
    objects.delete(reference.key)
    return data


def _finished_call(run: RunDirectory, folder: str, chunk: Chunk, step: int) -> Json | None:
    path = run.root / folder / f"call-{chunk.name}.json"
    if not path.is_file():
        return None
    marker = read_json(path)
    same = marker["questions"] == [question.id for question in chunk.questions] and marker["policy_version"] == step
    return marker if same and is_intact(run.root, FileRef.from_json(marker["file"])) else None


def _store_call(run: RunDirectory, folder: str, chunk: Chunk, step: int, data: bytes, report: Json) -> Json:
    """Write the trajectories, then the marker that makes the call a finished one."""
    ref = write_file(run.root, f"{folder}/call-{chunk.name}.parquet", data)
    marker = {
        "questions": [question.id for question in chunk.questions],
        "policy_version": step,
        "lineage": run.lineage,
        "file": ref.to_json(),
        "report": report,
    }
    write_json(run.root / folder / f"call-{chunk.name}.json", marker)
    return marker


def _check_void(void: Sequence[Question], questions: Sequence[Question], step: int) -> None:
    if 2 * len(void) > len(questions):
        raise InfrastructureError(
            f"step {step}: {len(void)} of {len(questions)} groups were lost to infrastructure failures; "
            "events.jsonl in the run directory holds the causes. Mend them and start the run again: it goes on here"
        )


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
