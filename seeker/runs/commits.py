"""Committed steps: the manifest of each, and `LATEST`, whose replacement is the only commit.

Everything that a step made is on the disk, flushed, before `LATEST` names it. Killed before that replacement, the
step is done again (from the files that it left); killed after it, the step is done. Both are sealed, and a manifest
holds the digests of what the step made and of the commit before it, so that damage is seen and walked back over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeker.errors import ConfigError, RunDirectoryError, StorageError, explain_storage
from seeker.runs.directory import RunDirectory
from seeker.runs.files import FileRef, Json, dump_json, read_json, read_sealed, sealed, write_file, write_json


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

    def to_json(self) -> Json:
        manifest = None if self.manifest is None else self.manifest.to_json()
        return {
            "step": self.step,
            "policy_version": self.policy_version,
            "lineage": self.lineage,
            "policy": self.policy.to_json(),
            "manifest": manifest,
        }

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> Latest:
        manifest = told["manifest"]
        return Latest(
            step=told["step"],
            policy_version=told["policy_version"],
            lineage=told["lineage"],
            policy=FileRef.from_json(told["policy"]),
            manifest=None if manifest is None else FileRef.from_json(manifest),
        )


def read_latest(run: RunDirectory) -> Latest | None:
    """The last commit, or None when nothing was committed yet."""
    path = run.root / "LATEST"
    if not path.is_file():
        return None
    try:
        return Latest.from_json(read_sealed(path))
    except KeyError as error:
        raise RunDirectoryError(f"{path}: damaged, {error} is missing") from error


def replace_latest(run: RunDirectory, latest: Latest) -> Latest:
    """Make `latest` the last commit."""
    write_json(run.root / "LATEST", sealed(latest.to_json()), within=run.root)
    return latest


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
    return replace_latest(run, Latest(-1, 0, run.lineage, policy, None))


def commit_step(
    run: RunDirectory, step: int, policy: FileRef, manifest: Mapping[str, Any], objects: Sequence[Json] = ()
) -> Latest:
    """Write the step's manifest, then replace `LATEST`. Refuses to commit a step twice or out of order.

    `objects` describe the files that the published version added: ``{"path": …, "bytes": …, "xxh3": …}``.
    """
    if not (run.root / "run.json").is_file():
        raise StorageError(f"{run.root}: the run directory is gone; {explain_storage(FileNotFoundError())}")
    before = read_latest(run)
    if before is None or before.next_step != step:
        found = "nothing" if before is None else f"step {before.step}"
        raise RunDirectoryError(f"{run.root}: step {step} cannot be committed after {found}")
    whole = {
        **manifest,
        "step": step,
        "policy_version": step + 1,
        "lineage": run.lineage,
        "policy": policy.to_json(),
        "objects": list(objects),
        "previous": before.to_json(),
    }
    ref = write_file(run.root, manifest_path(run, step), dump_json(sealed(whole)))
    return replace_latest(run, Latest(step, step + 1, run.lineage, policy, ref))


def manifest_path(run: RunDirectory, step: int) -> str:
    return f"{run.step_path(step)}/manifest.json"


def read_manifest(run: RunDirectory, step: int) -> Json:
    """The manifest of a committed step."""
    return read_sealed(run.root / manifest_path(run, step))


def committed_manifests(run: RunDirectory) -> list[Json]:
    """Manifests of all committed steps, in order. One that was found damaged and put aside is left out."""
    latest = read_latest(run)
    steps = range(0 if latest is None else latest.next_step)
    return [read_manifest(run, step) for step in steps if (run.root / manifest_path(run, step)).is_file()]


def published_manifest(run: RunDirectory, version: int) -> Json:
    """What the publisher wrote down about a policy version: which objects hold it, and its digest."""
    return read_json(run.root / "policy" / f"{version:06d}.json")
