"""The run directory: where everything of one run lies, and what it says about itself in `run.json`.

run.json              resolved configuration, digests, cluster
steps/000003/         rollouts/call-000.parquet + .json, batch.bin, manifest.json
checkpoints/000010/   full trainer state at policy version 10
policy/               published versions: 000004.json and the files that it names
evaluations/          000010-heldout-greedy.json + .parquet
metrics.jsonl         derived from the manifests and evaluations
checkpoint.json       derived from the manifests
events.jsonl          infrastructure trouble
state.json            what the writer is doing, or why it stopped
LATEST                the last committed step: replacing it is the only commit
lineages/000/         what lineage 0 had made after the commit that a later lineage began at
damaged/000/          files of lineage 0 that were found damaged
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.fields import validate
from seeker.presets import config_digest
from seeker.runs.events import EventLog
from seeker.runs.files import Json, read_json, write_json


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths and identity of one run.

    `key` is unique for each creation of a directory: a run that is deleted and started again under the same name is
    another run to every cache. `lineage` counts the times that history was abandoned and begun anew from a commit.
    `floor` is the policy version below which no update can be replayed: it was made under other settings.
    """

    root: Path
    run_id: str
    key: str
    lineage: int
    config: RunConfig
    floor: int = 0
    notes: tuple[str, ...] = ()  # what opening it found and mended, for the one who opened it

    @property
    def events(self) -> EventLog:
        return EventLog(self.root / "events.jsonl")

    @property
    def policy_folder(self) -> Path:
        return self.root / "policy"

    @property
    def cache_key(self) -> str:
        """Names this directory to caches: a copy of it, which goes on by itself, is another."""
        return f"{self.key}-{self.root.stat().st_ino:x}"

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
        write_json(self.root / "run.json", {**self.describe(), **facts}, within=self.root)

    def resolved(self) -> Json:
        """What `run.json` says about the configuration and the lineage."""
        return {
            "config": self.config.model_dump(mode="json"),
            "config_digest": config_digest(self.config),
            "lineage": self.lineage,
            "floor": self.floor,
        }


def load_run(root: Path) -> RunDirectory:
    """The run at `root` for reading (evaluation, export, views); takes no lock."""
    path = root / "run.json"
    told = read_json(path)
    try:
        config = validate(told["config"], {}, str(path))
        return RunDirectory(root, told["run_id"], told["key"], told["lineage"], config, told.get("floor", 0))
    except KeyError as error:
        raise RunDirectoryError(f"{path}: damaged, {error} is missing; restore the file or start a new run") from error
