"""The run directory: the truth about a run. Prefect, progress bars and reports are views of it."""

from __future__ import annotations

from seeker.runs.checkpoints import checkpoint_versions, newest_checkpoint, prune_checkpoints
from seeker.runs.commits import (
    Latest,
    check_latest,
    commit_start,
    commit_step,
    committed_manifests,
    published_manifest,
    read_latest,
    read_manifest,
    wanted_version,
)
from seeker.runs.directory import RunDirectory, check_out, load_run, open_run
from seeker.runs.events import EventLog
from seeker.runs.files import FileRef, Json, is_intact, read_file, read_json, write_atomic, write_file, write_json
from seeker.runs.lock import writer_lock
from seeker.runs.views import (
    append_metrics,
    metric_rows,
    read_evaluations,
    read_metrics,
    write_checkpoint_summary,
    write_metrics,
)

__all__ = [
    "EventLog",
    "FileRef",
    "Json",
    "Latest",
    "RunDirectory",
    "append_metrics",
    "check_latest",
    "check_out",
    "checkpoint_versions",
    "commit_start",
    "commit_step",
    "committed_manifests",
    "is_intact",
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
    "wanted_version",
    "write_atomic",
    "write_checkpoint_summary",
    "write_file",
    "write_json",
    "write_metrics",
    "writer_lock",
]
