"""The runs of a folder at a glance, read from their directories alone: no server, no lock, no configuration checked."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seeker.errors import RunDirectoryError, StorageError
from seeker.runs.files import Json, read_json, read_sealed
from seeker.runs.state import read_state

RESUMABLE = ("paused", "failed", "cancelled", "died", "stopped")


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run.

    Example: ``RunLine("demo", "runs/demo", "died", "process 4711 on node7, started …", step=12, steps=30, lineage=0,
    evaluated_version=10, exact_match=0.61, num_bytes=52_000_000, time=1760000000.1)``.
    """

    run_id: str
    path: str
    state: str  # running, completed, paused, failed, cancelled, died, stopped, damaged
    reason: str
    step: int  # committed steps
    steps: int
    lineage: int
    evaluated_version: int | None  # of the last greedy held-out evaluation
    exact_match: float | None
    num_bytes: int
    time: float  # of the state; 0 when unknown

    @property
    def can_go_on(self) -> bool:
        """Nobody writes it and it is not at its end."""
        return self.state in RESUMABLE

    def to_json(self) -> Json:
        return asdict(self)


def list_runs(folder: Path) -> list[RunLine]:
    """The runs in `folder`, or the run that it is itself; the one that changed last comes first."""
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder}: no such folder; name one that holds run directories")
    roots = [folder] if (folder / "run.json").is_file() else [path.parent for path in folder.glob("*/run.json")]
    return sorted((describe_run(root) for root in roots), key=lambda line: (-line.time, line.run_id))


def describe_run(root: Path) -> RunLine:
    """One line about the run; a damaged one is a line too."""
    try:
        told = read_json(root / "run.json")
        latest = read_sealed(root / "LATEST") if (root / "LATEST").is_file() else {}
        state = read_state(root)
        step, steps = latest.get("policy_version", 0), told["config"]["steps"]
        ended = state.state == "stopped" and step >= steps
        return RunLine(
            run_id=told["run_id"],
            path=str(root),
            state="completed" if ended else state.state,
            reason="" if ended else state.reason,
            step=step,
            steps=steps,
            lineage=told["lineage"],
            **_last_evaluation(root),
            num_bytes=_size(root),
            time=state.time,
        )
    except (RunDirectoryError, StorageError, KeyError, TypeError) as error:
        why = f"one of its files has no {error}" if isinstance(error, KeyError) else str(error).removeprefix(f"{root}/")
        return RunLine(root.name, str(root), "damaged", why, 0, 0, 0, None, None, _size(root), 0.0)


def _last_evaluation(root: Path) -> dict[str, Any]:
    paths = sorted((root / "evaluations").glob("*-heldout-greedy.json"))
    if not paths:
        return {"evaluated_version": None, "exact_match": None}
    told = read_sealed(paths[-1])
    return {"evaluated_version": told["policy_version"], "exact_match": told["exact_match"]}


def _size(root: Path) -> int:
    """Bytes of all files below; one that vanishes meanwhile counts nothing."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
