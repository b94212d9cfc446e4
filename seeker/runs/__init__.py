"""The run directory: the truth about a run. Prefect, progress bars and reports are views of it."""

from __future__ import annotations

from seeker.runs.checkpoints import checkpoint_versions, newest_checkpoint, restore_points, store_checkpoint
from seeker.runs.commits import (
    Latest,
    commit_start,
    commit_step,
    committed_manifests,
    published_manifest,
    read_latest,
    read_manifest,
    wanted_version,
)
from seeker.runs.directory import RunDirectory, load_run
from seeker.runs.events import EventLog
from seeker.runs.files import FileRef, Json, is_intact, read_file, read_json, write_atomic, write_file, write_json
from seeker.runs.lineages import Beginning, begin_lineage
from seeker.runs.lock import Writer, current_writer, writer_lock
from seeker.runs.opening import check_out, fork_run, open_run
from seeker.runs.retention import kept_checkpoints, prune_checkpoints
from seeker.runs.state import RunState, read_state, tell_state, telling_state
from seeker.runs.views import (
    append_metrics,
    metric_rows,
    read_evaluations,
    read_metrics,
    write_checkpoint_summary,
    write_metrics,
)

__all__ = [
    "Beginning",
    "EventLog",
    "FileRef",
    "Json",
    "Latest",
    "RunDirectory",
    "RunState",
    "Writer",
    "append_metrics",
    "begin_lineage",
    "check_out",
    "checkpoint_versions",
    "commit_start",
    "commit_step",
    "committed_manifests",
    "current_writer",
    "fork_run",
    "is_intact",
    "kept_checkpoints",
    "load_run",
    "metric_rows",
    "newest_checkpoint",
    "open_run",
    "prune_checkpoints",
    "published_manifest",
    "read_evaluations",
    "read_file",
    "read_json",
    "read_latest",
    "read_manifest",
    "read_metrics",
    "read_state",
    "restore_points",
    "store_checkpoint",
    "tell_state",
    "telling_state",
    "wanted_version",
    "write_atomic",
    "write_checkpoint_summary",
    "write_file",
    "write_json",
    "write_metrics",
    "writer_lock",
]
