"""The update phase, and checkpoints beside the loop. Every call names the step that it needs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from seeker.errors import ClusterError
from seeker.runs import FileRef, Json, prune_checkpoints, read_file, write_checkpoint_summary
from tasks.cluster import Session, current_session
from tasks.naming import phase_task


@phase_task("update")
def update(run_key: str, lineage: int, step: int, advantages: Json) -> Json:
    """One optimizer step on the batch: ``{"metrics": {...}}``."""
    return apply_update(current_session(), step, advantages)


def apply_update(session: Session, step: int, advantages: Json) -> Json:
    started = time.perf_counter()
    finish_checkpoints(session)
    data = read_file(session.run.root, FileRef.from_json(advantages["batch"]))
    handle = session.cluster.objects.put(session.trainers.prefix, data)
    metrics = reported_once(session.trainers.run("update", step, handle.to_json()), step)
    session.cluster.objects.delete(handle.key)
    return {"metrics": metrics, "seconds": time.perf_counter() - started}


def reported_once(reports: Sequence[Json], step: int) -> Json:
    """The metrics of all ranks, which must be the same ones, and how long the quickest waited for the others."""
    if len({json.dumps(report["metrics"], sort_keys=True) for report in reports}) > 1:
        raise ClusterError(f"step {step}: the trainer ranks report different metrics: {reports}")
    waiting = {"seconds/update_waiting": max(report["waited_s"] for report in reports)} if len(reports) > 1 else {}
    return {**reports[0]["metrics"], **waiting}


def begin_checkpoint(session: Session, version: int) -> None:
    """Ask for the full trainer state at `version`; it is written while the next step's rollouts run."""
    path = str(session.run.checkpoint_path(version).resolve())
    session.pending.append(session.trainers.begin("checkpoint", version, path))


def finish_checkpoints(session: Session) -> None:
    """Wait for the checkpoints under way; older ones go once the newest was read back."""
    if not session.pending:
        return
    while session.pending:
        written = session.pending.pop(0).result()[0]
        prune_checkpoints(session.run, verified=written["version"])
    write_checkpoint_summary(session.run)
