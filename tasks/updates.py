"""The update phase, and checkpoints beside the loop. Every call names the step that it needs."""

from __future__ import annotations

import time

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
    handle = session.cluster.objects.put(session.trainer.prefix, data)
    call = session.trainer.call(
        "update", step, handle.to_json(), deadline_s=session.config.cluster.update_deadline_s, idempotent=True
    )
    report = call.result()
    session.cluster.objects.delete(handle.key)
    return {"metrics": report["metrics"], "seconds": time.perf_counter() - started}


def begin_checkpoint(session: Session, version: int) -> None:
    """Ask for the full trainer state at `version`; it is written while the next step's rollouts run."""
    path = str(session.run.checkpoint_path(version).resolve())
    deadline_s = session.config.cluster.update_deadline_s
    session.pending.append(session.trainer.call("checkpoint", version, path, deadline_s=deadline_s, idempotent=True))


def finish_checkpoints(session: Session) -> None:
    """Wait for the checkpoints under way; older ones go once the newest was read back."""
    if not session.pending:
        return
    while session.pending:
        written = session.pending.pop(0).result()
        prune_checkpoints(session.run, verified=written["version"])
    write_checkpoint_summary(session.run)
