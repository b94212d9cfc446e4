"""Running the training flow in a test, and what must be equal between two runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.prepare import prepare
from flows.train import train
from seeker.runs import load_run, published_manifest, read_evaluations, read_latest, read_metrics
from tasks.cluster import use_cluster
from tests.flows.fake_cluster import FakeCluster, Script
from tests.flows.tiny_run import tiny_config


def no_trouble(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    pass


def run_flow(folder: Path, script: Script = no_trouble, **changes: Any) -> tuple[Path, FakeCluster]:
    """The flow on a fresh scripted cluster."""
    config = tiny_config(folder, **changes)
    prepared = prepare(config=config, root=str(folder / "prepared"))
    cluster = FakeCluster(script)
    with use_cluster(cluster):  # type: ignore[arg-type]
        told = train(config=config, run_id="tiny", prepared=prepared)
    return Path(told["run"]), cluster


def outcome(root: Path) -> dict[str, Any]:
    """What must be equal between a run with and one without interruption: metrics but times, evaluations, policy."""
    run = load_run(root)
    rows = [
        {
            name: value
            for name, value in row.items()
            if not name.startswith(("seconds/", "rollout/", "publish/", "step_"))
        }
        for row in read_metrics(root)
    ]
    evaluations = [{name: value for name, value in each.items() if name != "seconds"} for each in read_evaluations(run)]
    latest = read_latest(run)
    assert latest is not None
    return {
        "rows": rows,
        "evaluations": evaluations,
        "digest": published_manifest(run, latest.policy_version)["digest"],
    }


def copy_inputs(source: Path, target: Path) -> None:
    """The same policy and questions: a run is compared with another on equal inputs."""
    for name in ("policy", "questions.jsonl", "prepared"):
        path = source / name
        if path.is_dir():
            shutil.copytree(path, target / name)
        else:
            shutil.copy(path, target / name)
