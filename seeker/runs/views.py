"""Files derived from the manifests: `metrics.jsonl` (one line a step, for curves) and `checkpoint.json`.

They are written again from the truth whenever a run is opened, so that a crash can leave them behind but never wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seeker.runs import disk
from seeker.runs.checkpoints import newest_checkpoint
from seeker.runs.commits import Latest, committed_manifests, read_latest, read_manifest
from seeker.runs.directory import RunDirectory
from seeker.runs.files import Json, read_sealed, write_atomic, write_json


def write_metrics(run: RunDirectory) -> None:
    """Derive `metrics.jsonl` from all manifests and evaluations."""
    rows = metric_rows(run)
    data = "".join(_line(row) for row in rows).encode()
    write_atomic(run.root / "metrics.jsonl", data, within=run.root, durable=False)


def append_metrics(run: RunDirectory, step: int) -> None:
    """Add the line of the step that was just committed."""
    row = _row(read_manifest(run, step), _evaluation_metrics(run))
    disk.append(run.root / "metrics.jsonl", _line(row).encode())


def metric_rows(run: RunDirectory) -> list[Json]:
    """One row a step; a row of step -1 holds the evaluation of the starting policy.

    An evaluation of policy version v stands in the row of the step that made it, v - 1.
    """
    evaluations = _evaluation_metrics(run)
    start: list[Json] = []
    if 0 in evaluations:
        start = [{"step": -1, "policy_version": 0, **evaluations[0]}]
    return start + [_row(manifest, evaluations) for manifest in committed_manifests(run)]


def write_checkpoint_summary(run: RunDirectory) -> None:
    """Derive `checkpoint.json`: where the run stands and the newest full trainer state."""
    latest = read_latest(run)
    if latest is None:
        return
    version = newest_checkpoint(run, latest.policy_version)
    write_json(
        run.root / "checkpoint.json",
        {
            "run_id": run.run_id,
            "step": latest.step,
            "policy_version": latest.policy_version,
            "lineage": latest.lineage,
            "policy": latest.policy.to_json(),
            "checkpoint": None if version is None else str(run.checkpoint_path(version).relative_to(run.root)),
            "checkpoint_version": version,
            "metrics": _latest_metrics(run, latest),
        },
        within=run.root,
        durable=False,
    )


def read_evaluations(run: RunDirectory) -> list[Json]:
    """All evaluations of the run, by file name."""
    return [read_sealed(path) for path in sorted((run.root / "evaluations").glob("*.json"))]


def greedy_scores(run: RunDirectory) -> dict[int, float]:
    """Exact match of greedy held-out evaluations by policy version."""
    return {
        version: found["eval/exact_match"]
        for version, found in _evaluation_metrics(run).items()
        if "eval/exact_match" in found
    }


def _evaluation_metrics(run: RunDirectory) -> dict[int, Json]:
    """By policy version: ``eval/…`` of greedy held-out evaluations, ``eval_sampled/…`` of sampled ones."""
    found: dict[int, Json] = {}
    for evaluation in read_evaluations(run):
        if evaluation["set"] != "heldout":
            continue
        prefix = "eval" if evaluation["mode"] == "greedy" else "eval_sampled"
        named = {f"{prefix}/{name}": evaluation[name] for name in ("exact_match", "f1", "searches")}
        found.setdefault(evaluation["policy_version"], {}).update(named)
    return found


def _row(manifest: Json, evaluations: dict[int, Json]) -> Json:
    version = manifest["policy_version"]
    return {
        "step": manifest["step"],
        "policy_version": version,
        **manifest["metrics"],
        **evaluations.get(version, {}),
    }


def _latest_metrics(run: RunDirectory, latest: Latest) -> Json:
    return {} if latest.step < 0 else read_manifest(run, latest.step)["metrics"]


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, allow_nan=False) + "\n"


def read_metrics(root: Path) -> list[Json]:
    """The rows of `metrics.jsonl`."""
    path = root / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
