"""The update phase, and checkpoints beside the loop. Every call names the step that it needs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from seeker.errors import ClusterError
from seeker.runs import FileRef, Json, prune_checkpoints, read_file, write_checkpoint_summary
from tasks.cluster import PendingCheckpoint, Session, current_session
from tasks.naming import phase_task


@phase_task("update")
def update(run_key: str, lineage: int, step: int, advantages: Json) -> Json:
    """One optimizer step on the batch: ``{"metrics": {...}}``."""
    return apply_update(current_session(), step, advantages)


def apply_update(session: Session, step: int, advantages: Json) -> Json:
    started = time.perf_counter()
    for pending in session.pending:
        pending.await_copy()
    data = read_file(session.run.root, FileRef.from_json(advantages["batch"]))
    handle = session.cluster.objects.put(session.trainers.prefix, data)
    metrics = reported_once(session.trainers.run("update", step, handle.to_json()), step)
    session.cluster.objects.delete(handle.key)
    settle_checkpoints(session, wait=False)
    return {"metrics": metrics, "seconds": time.perf_counter() - started}


def reported_once(reports: Sequence[Json], step: int) -> Json:
    """The metrics of all ranks, which must be the same ones, and how long the quickest waited for the others."""
    if len({json.dumps(report["metrics"], sort_keys=True) for report in reports}) > 1:
        raise ClusterError(f"step {step}: the trainer ranks report different metrics: {reports}")
    waiting = {"seconds/update_waiting": max(report["waited_s"] for report in reports)} if len(reports) > 1 else {}
    return {**reports[0]["metrics"], **waiting}


def begin_checkpoint(session: Session, version: int) -> None:
    """Ask for the full trainer state at `version`: copied while the next rollouts run, written beside the updates."""
    path = str(session.run.checkpoint_path(version).resolve())
    session.pending.append(PendingCheckpoint(version, path, session.trainers.begin("checkpoint", version, path)))


def settle_checkpoints(session: Session, wait: bool) -> None:
    """Take note of checkpoints that are on the disk; older ones go once a newer one was read back.

    One whose trainer was lost is left to the next one while the loop goes on, and made again where it is the last.
    """
    settled: list[PendingCheckpoint] = []
    for pending in session.pending:
        told = _ask(session, pending, wait)
        if wait and not told["written"]:
            session.trainers.run("checkpoint", pending.version, pending.path)
            told = _ask(session, pending, wait)
        if told["written"]:
            prune_checkpoints(session.run, verified=pending.version)
        elif told["writing"]:
            continue
        else:
            session.run.events.record("checkpoint_lost", version=pending.version)
        settled.append(pending)
    if settled:
        session.pending[:] = [pending for pending in session.pending if pending not in settled]
        write_checkpoint_summary(session.run)


def _ask(session: Session, pending: PendingCheckpoint, wait: bool) -> Json:
    pending.await_copy()
    return session.trainers.run("written", pending.version, pending.path, wait)[0]
