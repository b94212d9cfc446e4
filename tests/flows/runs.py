"""Small configurations and run directories for the tests of runs and flows."""

from __future__ import annotations

from pathlib import Path

from seeker.config import RunConfig
from seeker.runs import (
    Json,
    RunDirectory,
    commit_start,
    commit_step,
    open_run,
    write_file,
    write_json,
    write_metrics,
)
from seeker.runs.files import dump_json


def small_config(**changes: object) -> RunConfig:
    """A configuration that names things which need not exist."""
    settings: dict[str, object] = {
        "policy": {"path": "nowhere"},
        "questions": {"world_seed": 1},
        "steps": 3,
        **changes,
    }
    return RunConfig.model_validate(settings)


def start_run(root: Path, **changes: object) -> RunDirectory:
    """A run whose starting policy is committed."""
    root.mkdir(parents=True, exist_ok=True)
    run = open_run(root, small_config(**changes), "demo")
    commit_start(run, write_file(root, "policy/000000.json", b"{}"))
    return run


def commit_one(run: RunDirectory, step: int, policy: Json | None = None, **metrics: float) -> None:
    """Commit a step that did nothing."""
    published = write_file(run.root, f"policy/{step + 1:06d}.json", dump_json(policy or {}))
    batch = write_file(run.root, f"{run.step_path(step)}/batch.bin", bytes([step]))
    commit_step(run, step, published, {"rollouts": [], "batch": batch.to_json(), "metrics": metrics})


def write_evaluation(run: RunDirectory, version: int, mode: str, exact_match: float) -> None:
    path = run.root / "evaluations" / f"{version:06d}-heldout-{mode}.json"
    told = {"policy_version": version, "set": "heldout", "mode": mode}
    write_json(path, {**told, "exact_match": exact_match, "f1": exact_match, "searches": 1.0})
    write_metrics(run)
