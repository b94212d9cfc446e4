"""A whole run without models: its writers are the run's own, its policy is a hash of every batch it was trained on.

So a step that is missing, done twice, or trained from the wrong state shows in the final policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import xxhash

from seeker.config import RunConfig
from seeker.runs import (
    FileRef,
    RunDirectory,
    append_metrics,
    commit_start,
    commit_step,
    is_intact,
    open_run,
    prune_checkpoints,
    read_file,
    read_json,
    read_latest,
    restore_points,
    store_checkpoint,
    telling_state,
    write_atomic,
    write_checkpoint_summary,
    write_file,
    write_json,
    write_metrics,
    writer_lock,
)
from seeker.runs.disk import use_disk
from seeker.runs.files import dump_json
from seeker.runs.policies import FolderObjects
from tests.runs.faults import Killed, ScriptedDisk

CALLS = ("000", "001")
# What may differ between a run that was interrupted and one that was not: times, trouble, identity.
UNCOMPARED = ("run.json", "state.json", "events.jsonl", ".lock")


def scripted_config(**changes: object) -> RunConfig:
    settings: dict[str, object] = {
        "policy": {"path": "nowhere"},
        "questions": {"world_seed": 1},
        "steps": 2,
        "checkpoint": {"every": 1, "keep": 1, "batches": "rebuild"},
        **changes,
    }
    return RunConfig.model_validate(settings)


def play(root: Path, config: RunConfig | None = None) -> RunDirectory:
    """Start the run at `root` or go on with it, to its end."""
    with writer_lock(root):
        run = open_run(root, config or scripted_config(), "scripted")
        with telling_state(run):
            _loop(run)
        return run


def outcome(root: Path) -> dict[str, bytes]:
    """Every file but those that tell of times and trouble."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in UNCOMPARED
    }


def final_policy(root: Path) -> str:
    latest = json.loads((root / "LATEST").read_text())
    return read_json(root / latest["policy"]["path"])["digest"]


def _loop(run: RunDirectory) -> None:
    latest = read_latest(run)
    first = 0 if latest is None else latest.next_step
    trainer = Trainer(run)
    trainer.reach(first)
    if latest is None:
        commit_start(run, _publish(run, trainer)[0])
    write_metrics(run)
    write_checkpoint_summary(run)
    _after_commit(run, trainer)
    for step in range(first, run.config.steps):
        _step(run, trainer, step)
        _after_commit(run, trainer)


def _step(run: RunDirectory, trainer: Trainer, step: int) -> None:
    calls = [_rollout(run, step, call, trainer.state) for call in CALLS]
    made = b"".join(read_file(run.root, FileRef.from_json(call)) for call in calls)
    batch = write_file(run.root, f"{run.step_path(step)}/batch.bin", hashlib.sha256(made).digest())
    trainer.update(read_file(run.root, batch))
    policy, told = _publish(run, trainer)
    metrics = {"reward": len(made) + step, "seconds/step": 0.5}
    commit_step(run, step, policy, {"rollouts": calls, "batch": batch.to_json(), "metrics": metrics}, [told])
    append_metrics(run, step)
    write_checkpoint_summary(run)


def _rollout(run: RunDirectory, step: int, call: str, policy: str) -> dict[str, str]:
    """One call's trajectories and its marker; a finished call of an interrupted attempt is taken as it is."""
    marker = run.root / run.step_path(step) / "rollouts" / f"call-{call}.json"
    if marker.is_file():
        told = read_json(marker)["file"]
        if is_intact(run.root, FileRef.from_json(told)):
            return told
    trajectories = f"{call} by {policy} with {run.config.rollout.group_size}".encode()
    ref = write_file(run.root, str(marker.with_suffix(".parquet").relative_to(run.root)), trajectories)
    write_json(marker, {"file": ref.to_json()}, within=run.root)
    return ref.to_json()


def _publish(run: RunDirectory, trainer: Trainer) -> tuple[FileRef, dict[str, object]]:
    kind = "patch" if trainer.version else "base"
    told = FolderObjects(run.policy_folder).store("app/s/0f", trainer.version + 1, trainer.state.encode(), kind)
    manifest = {"version": trainer.version, "digest": trainer.state}
    return write_file(run.root, f"policy/{trainer.version:06d}.json", dump_json(manifest)), told


def _after_commit(run: RunDirectory, trainer: Trainer) -> None:
    version = trainer.version
    if version and (version % run.config.checkpoint.every == 0 or version == run.config.steps):
        if not run.checkpoint_path(version).is_dir():
            store_checkpoint(run.checkpoint_path(version), trainer.files())
        prune_checkpoints(run, verified=version)
        write_checkpoint_summary(run)
    path = run.root / "evaluations" / f"{version:06d}-heldout-greedy.json"
    told = {"policy_version": version, "set": "heldout", "mode": "greedy", "digest": trainer.state}
    if not path.is_file() or read_json(path)["digest"] != trainer.state:
        write_atomic(path.with_suffix(".parquet"), trainer.state.encode(), within=run.root)
        write_json(path, {**told, "exact_match": 0.25, "f1": 0.25, "searches": 1.0}, within=run.root)
        write_metrics(run)


class Trainer:
    """The policy is a hash, into which an update hashes batch and learning rate. Restores and replays as ours does."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.version = 0
        self.state = "start"

    def reach(self, version: int) -> None:
        for point in restore_points(self.run, version):
            if point == 0 or self._load(point):
                break
        while self.version < version:
            path = self.run.root / self.run.step_path(self.version) / "batch.bin"
            self.update(path.read_bytes())

    def update(self, batch: bytes) -> None:
        rate = self.run.config.optimizer.learning_rate
        self.state = hashlib.sha256(f"{self.state} {batch.hex()} {rate}".encode()).hexdigest()
        self.version += 1

    def files(self) -> dict[str, list[bytes]]:
        state = self.state.encode()
        facts = {"version": self.version, "state_digest": xxhash.xxh3_128_hexdigest(state)}
        return {"state.safetensors": [state], "trainer.json": [dump_json(facts)]}

    def _load(self, version: int) -> bool:
        folder = self.run.checkpoint_path(version)
        state = (folder / "state.safetensors").read_bytes()
        if xxhash.xxh3_128_hexdigest(state) != read_json(folder / "trainer.json")["state_digest"]:
            return False
        self.version, self.state = version, state.decode()
        return True


def next_step(run: RunDirectory) -> None:
    """Do one step of a run that is open."""
    latest = read_latest(run)
    assert latest is not None
    trainer = Trainer(run)
    trainer.version = latest.policy_version
    _step(run, trainer, latest.next_step)


def play_until(root: Path, config: RunConfig, commits: int) -> None:
    """Play, and be gone right after the commit of the `commits`th step."""
    disk = ScriptedDisk()
    with use_disk(disk):
        disk.on_commit(commits + 1)  # the first commit is the start
        with contextlib.suppress(Killed):
            play(root, config)
    assert disk.struck
