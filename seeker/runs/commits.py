"""Committed steps: the manifest of each, and `LATEST`, whose replacement is the only commit.

Everything that a step made is on the disk, flushed, before `LATEST` names it. Killed before that replacement, the
step is done again (from the files that it left); killed after it, the step is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seeker.errors import ConfigError, RunDirectoryError
from seeker.runs.directory import RunDirectory
from seeker.runs.files import FileRef, Json, dump_json, read_file, read_json, write_file, write_json


@dataclass(frozen=True, slots=True)
class Latest:
    """The last commit. `step` is -1 when only the starting policy (version 0) is committed.

    Example: ``Latest(step=3, policy_version=4, lineage=0, policy=FileRef("policy/000004.json", "…"),
    manifest=FileRef("steps/000003/manifest.json", "…"))``.
    """

    step: int
    policy_version: int
    lineage: int
    policy: FileRef  # the published version's manifest
    manifest: FileRef | None  # the step's manifest; None at the start

    @property
    def next_step(self) -> int:
        return self.step + 1


def read_latest(run: RunDirectory) -> Latest | None:
    """The last commit, or None when nothing was committed yet."""
    path = run.root / "LATEST"
    if not path.is_file():
        return None
    told = read_json(path)
    manifest = told["manifest"]
    return Latest(
        step=told["step"],
        policy_version=told["policy_version"],
        lineage=told["lineage"],
        policy=FileRef.from_json(told["policy"]),
        manifest=None if manifest is None else FileRef.from_json(manifest),
    )


def wanted_version(run: RunDirectory, version: int | None) -> int:
    """The committed policy version that was asked for; the latest when none was.

    Raises `RunDirectoryError` when nothing is committed, `ConfigError` when the run does not hold that version.
    """
    latest = read_latest(run)
    if latest is None:
        raise RunDirectoryError(f"{run.root}: no policy version is committed yet; train first")
    if version is None:
        return latest.policy_version
    if not 0 <= version <= latest.policy_version:
        raise ConfigError(f"version {version}: {run.root} holds the versions 0 to {latest.policy_version}")
    return version


def commit_start(run: RunDirectory, policy: FileRef) -> Latest:
    """Commit the starting policy as version 0."""
    return _replace_latest(run, Latest(-1, 0, run.lineage, policy, None))


def commit_step(run: RunDirectory, step: int, policy: FileRef, manifest: Mapping[str, Any]) -> Latest:
    """Write the step's manifest, then replace `LATEST`. Refuses to commit a step twice or out of order."""
    before = read_latest(run)
    if before is None or before.next_step != step:
        found = "nothing" if before is None else f"step {before.step}"
        raise RunDirectoryError(f"{run.root}: step {step} cannot be committed after {found}")
    whole = {**manifest, "step": step, "policy_version": step + 1, "lineage": run.lineage, "policy": policy.to_json()}
    ref = write_file(run.root, f"{run.step_path(step)}/manifest.json", dump_json(whole))
    return _replace_latest(run, Latest(step, step + 1, run.lineage, policy, ref))


def read_manifest(run: RunDirectory, step: int) -> Json:
    """The manifest of a committed step."""
    return read_json(run.root / run.step_path(step) / "manifest.json")


def committed_manifests(run: RunDirectory) -> list[Json]:
    """Manifests of all committed steps, in order."""
    latest = read_latest(run)
    return [] if latest is None else [read_manifest(run, step) for step in range(latest.next_step)]


def published_manifest(run: RunDirectory, version: int) -> Json:
    """What the publisher wrote down about a policy version: which objects hold it, and its digest."""
    return read_json(run.root / "policy" / f"{version:06d}.json")


def check_latest(run: RunDirectory, latest: Latest) -> None:
    """Raise when a file that the last commit names is missing or damaged."""
    read_file(run.root, latest.policy)
    if latest.manifest is not None:
        read_file(run.root, latest.manifest)


def _replace_latest(run: RunDirectory, latest: Latest) -> Latest:
    manifest = None if latest.manifest is None else latest.manifest.to_json()
    write_json(
        run.root / "LATEST",
        {
            "step": latest.step,
            "policy_version": latest.policy_version,
            "lineage": latest.lineage,
            "policy": latest.policy.to_json(),
            "manifest": manifest,
        },
    )
    return latest
