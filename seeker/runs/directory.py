"""The run directory: where everything of one run lies, and what it says about itself in `run.json`.

run.json              resolved configuration, digests, cluster
steps/000003/         rollouts/call-000.parquet + .json, batch.bin, manifest.json
checkpoints/000010/   full trainer state at policy version 10
policy/               published versions: 000004.json and the files that it names
evaluations/          000010-heldout-greedy.json + .parquet
metrics.jsonl         derived from the manifests and evaluations
checkpoint.json       derived from the manifests
events.jsonl          infrastructure trouble
LATEST                the last committed step: replacing it is the only commit
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.presets import config_digest, describe_differences
from seeker.runs.events import EventLog
from seeker.runs.files import Json, read_json, write_json
from seeker.runs.lock import writer_lock

# Fields that may change when a run goes on: they decide how and how far it is executed, not what a step computes.
EXECUTION_FIELDS = ("out", "preset", "steps", "cluster", "checkpoint")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths and identity of one run.

    `key` is unique for each creation of a directory: a run that is deleted and started again under the same name is
    another run to every cache. `lineage` counts the times that history was abandoned and begun anew from a commit.
    """

    root: Path
    run_id: str
    key: str
    lineage: int
    config: RunConfig

    @property
    def events(self) -> EventLog:
        return EventLog(self.root / "events.jsonl")

    @property
    def policy_folder(self) -> Path:
        return self.root / "policy"

    def step_path(self, step: int) -> str:
        """Folder of a step, relative to the run directory: ``steps/000003``."""
        return f"steps/{step:06d}"

    def checkpoint_path(self, version: int) -> Path:
        return self.root / "checkpoints" / f"{version:06d}"

    def describe(self) -> Json:
        """`run.json` as it is on the disk."""
        return read_json(self.root / "run.json")

    def amend(self, facts: Mapping[str, Any]) -> None:
        """Add facts that are known only after the start (digests, cluster) to `run.json`."""
        write_json(self.root / "run.json", {**self.describe(), **facts})


def open_run(root: Path, config: RunConfig, run_id: str) -> RunDirectory:
    """Create the run directory, or go on with the one that is there. The caller holds the writer's lock."""
    if (root / "run.json").is_file():
        return _go_on(root, config)
    _check_new(root)
    run = RunDirectory(root, run_id, uuid.uuid4().hex[:12], 0, config)
    write_json(root / "run.json", {"run_id": run_id, "key": run.key, "created": time.time(), **_resolved(run)})
    return run


def check_out(root: Path, config: RunConfig) -> None:
    """Whether `config` can start or go on at `root`: looked at before anything is prepared, started or written there.

    Raises `RunDirectoryError` (also `LockedError`) as `open_run` and the writer's lock would.
    """
    existed = root.exists()
    if root.is_dir() and not (root / "run.json").is_file():
        _check_new(root)  # before the lock's file is put into a folder that is not ours
    with writer_lock(root):
        if (root / "run.json").is_file():
            _check_same(root, load_run(root).config, config)
    if not existed:
        (root / ".lock").unlink()
        root.rmdir()


def load_run(root: Path) -> RunDirectory:
    """The run at `root` for reading (evaluation, export, views); takes no lock."""
    told = read_json(root / "run.json")
    config = RunConfig.model_validate(told["config"])
    return RunDirectory(root, told["run_id"], told["key"], told["lineage"], config)


def _check_new(root: Path) -> None:
    if any((root / name).exists() for name in ("LATEST", "steps", "policy")):
        raise RunDirectoryError(f"{root}: holds a run without run.json; restore that file or choose another --out")
    foreign = [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    if foreign and not _only_logs(foreign):
        raise RunDirectoryError(f"{root}: not empty and not a run ({', '.join(foreign[:3])} …); choose another --out")


def _check_same(root: Path, stored: RunConfig, config: RunConfig) -> None:
    differing = [line for line in describe_differences(stored, config) if _section(line) not in EXECUTION_FIELDS]
    if differing:
        raise RunDirectoryError(
            f"{root}: this run was started with another configuration: {'; '.join(differing)}; "
            "use the same values to go on with it, or another --out to start a new run"
        )
    latest = root / "LATEST"
    done = read_json(latest)["policy_version"] if latest.is_file() else 0
    if config.steps < done:
        raise RunDirectoryError(
            f"{root}: steps: {done} are committed already, {config.steps} were asked for; "
            f"ask for {done} or more, or choose another --out"
        )


def _go_on(root: Path, config: RunConfig) -> RunDirectory:
    stored = load_run(root)
    _check_same(root, stored.config, config)
    run = RunDirectory(root, stored.run_id, stored.key, stored.lineage, config)
    run.amend(_resolved(run))
    return run


def _resolved(run: RunDirectory) -> Json:
    return {
        "config": run.config.model_dump(mode="json"),
        "config_digest": config_digest(run.config),
        "lineage": run.lineage,
    }


def _section(line: str) -> str:
    """The first name of ``rollout.group_size: 8 -> 4``."""
    return line.partition(":")[0].partition(".")[0]


def _only_logs(names: list[str]) -> bool:
    return all(name == "logs" or name.endswith(".log") for name in names)
