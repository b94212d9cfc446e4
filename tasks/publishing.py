"""The publish phase: stage and verify in the trainer, then the commit of the whole step in the run directory."""

from __future__ import annotations

import time
from dataclasses import replace

from seeker.runs import (
    Beginning,
    FileRef,
    Json,
    Latest,
    RunDirectory,
    append_metrics,
    begin_lineage,
    commit_start,
    commit_step,
    published_manifest,
    read_latest,
    read_manifest,
    write_checkpoint_summary,
    write_file,
    write_metrics,
)
from seeker.runs.files import dump_json
from tasks.cluster import Session, current_session
from tasks.naming import phase_task


@phase_task("publish", commits=True)
def publish(run_key: str, lineage: int, step: int, rollouts: Json, advantages: Json, update: Json) -> Json:
    """Commit the step: its policy version and manifest are on the disk, then `LATEST` names them."""
    return commit_published(current_session(), step, {"rollout": rollouts, "advantage": advantages, "update": update})


def commit_published(session: Session, step: int, phases: dict[str, Json]) -> Json:
    started = time.perf_counter()
    run = session.run
    latest = read_latest(run)
    if latest is not None and latest.step >= step:
        return {"metrics": read_manifest(run, step)["metrics"]}  # repeated after its commit: nothing is left to do
    published = stage_policy(session, step + 1)
    ref = _write_policy(session, step + 1, published["manifest"])
    seconds = {name: phase["seconds"] for name, phase in phases.items()}
    seconds["publish"] = time.perf_counter() - started
    elapsed = time.perf_counter() - session.step_started
    seconds["orchestration"] = max(0.0, elapsed - sum(seconds.values()))
    metrics = {
        **phases["rollout"]["metrics"],
        **phases["advantage"]["metrics"],
        **phases["update"]["metrics"],
        **published["metrics"],
        **{f"seconds/{name}": value for name, value in seconds.items()},
        "seconds/step": elapsed,
    }
    manifest = {
        "rollouts": phases["rollout"]["calls"],
        "batch": phases["advantage"]["batch"],
        "metrics": metrics,
    }
    commit_step(run, step, ref, manifest, published["objects"])
    session.step_started = time.perf_counter()  # what this task still costs belongs to the next step's orchestration
    session.policy = published["manifest"]
    append_metrics(run, step)
    write_checkpoint_summary(run)
    return {"metrics": metrics}


def publish_held(session: Session, version: int) -> None:
    """Publish `version` into this session's object store: the start of a run, or where a resumed run goes on."""
    published = stage_policy(session, version)
    session.policy = published["manifest"]
    latest = read_latest(session.run)
    if latest is None:
        commit_start(session.run, _write_policy(session, version, published["manifest"]))
    elif published_manifest(session.run, version)["digest"] != published["manifest"]["digest"]:
        session.run = _tell_apart(session.run, latest)
    write_metrics(session.run)
    write_checkpoint_summary(session.run)


def _tell_apart(run: RunDirectory, latest: Latest) -> RunDirectory:
    """A replay gave another policy than was committed, as a GPU may: what follows is another lineage, and says so."""
    fresh = begin_lineage(run, Beginning(latest, "replay"))
    note = (
        f"policy version {latest.policy_version} was rebuilt by replay and is not bit for bit the committed one: "
        f"going on from it as lineage {fresh.lineage}"
    )
    return replace(fresh, notes=(*run.notes, note))


def stage_policy(session: Session, version: int) -> Json:
    """Ask rank 0 to stage and verify `version`; it moves its remembered export to the committed one first."""
    return session.trainers.run("publish", version, session.policy)[0]


def _write_policy(session: Session, version: int, manifest: Json) -> FileRef:
    return write_file(session.run.root, f"policy/{version:06d}.json", dump_json(manifest))
