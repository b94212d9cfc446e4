"""A small run directory written with the run's own writers, to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seeker.evaluation import summarize
from seeker.presets import load_config
from seeker.runs import commit_start, commit_step, open_run, write_file, write_json, write_metrics, writer_lock
from seeker.runs.directory import RunDirectory
from seeker.types import Author, Question, Span, StopReason, Trajectory


def make_run(root: Path, steps: int, planned: int = 4, reward: float = 0.1) -> RunDirectory:
    """A run of `planned` steps of which `steps` are committed, with evaluations of the first and the last version."""
    config = load_config("laptop", steps=planned, out=str(root), seed=7)
    with writer_lock(root):
        run = open_run(root, config, "laptop-7")
        commit_start(run, write_file(root, "policy/000000.json", b"{}"))
        write_evaluation(root, 0, 0.125)
        for step in range(steps):
            policy = write_file(root, f"policy/{step + 1:06d}.json", b"{}")
            metrics = {"reward/exact_match": reward * (step + 1), "seconds/rollout": 3.0, "seconds/update": 1.0}
            commit_step(run, step, policy, {"rollouts": [], "batch": {}, "metrics": metrics})
        if steps:
            write_evaluation(root, steps, 0.625)
        write_metrics(run)
    return run


def write_evaluation(root: Path, version: int, exact_match: float, mode: str = "greedy") -> None:
    """An evaluation as the task writes it: of 200 questions of two kinds, `exact_match` answered."""
    trajectories = [_trajectory(i, float(i < 200 * exact_match)) for i in range(200)]
    questions = [
        Question(f"q{i}", f"question {i}", ("Velm",), kind=("spouse", "birthplace")[i % 2]) for i in range(200)
    ]
    told = {"set": "heldout", "mode": mode, "policy_version": version, **summarize(questions, trajectories)}
    write_json(root / "evaluations" / f"{version:06d}-heldout-{mode}.json", told)


def _trajectory(number: int, reward: float) -> Trajectory:
    policy = Span(Author.POLICY, np.array([1, 2], np.int32), np.zeros(2, np.float32), 0)
    terms = {"exact_match": reward, "f1": reward, "containment": reward, "format": 1.0}
    return Trajectory(
        f"q{number}",
        f"000000/q{number}",
        0,
        (policy,),
        StopReason.ANSWERED,
        1,
        0,
        0,
        answer="Velm",
        reward=reward,
        reward_terms=terms,
    )
