"""Starting a run, going on with one, and going back to an earlier step of one."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.presets import describe_differences, settings_digest
from seeker.runs.checkpoints import is_checkpoint_whole, restore_points
from seeker.runs.commits import Latest, read_latest
from seeker.runs.damage import Inspector
from seeker.runs.directory import RunDirectory, load_run
from seeker.runs.files import FileRef, sha256_hex, write_json
from seeker.runs.lineages import Beginning, begin_lineage
from seeker.runs.lock import writer_lock
from seeker.runs.recovery import recover

# Fields that may change when a run goes on: they decide how and how far it is executed, not what a step computes.
EXECUTION_FIELDS = ("out", "preset", "steps", "cluster", "checkpoint")
# Sections that decide what an update does to the policy: batches from before a change cannot be replayed after it.
UPDATE_FIELDS = ("policy", "objective", "optimizer")


def open_run(root: Path, config: RunConfig, run_id: str, *, resume: bool = True) -> RunDirectory:
    """Create the run directory, or go on with the one that is there. The caller holds the writer's lock.

    With `resume=False` a run that is there is refused.
    """
    if (root / "run.json").is_file():
        _check_resume(root, resume)
        return _go_on(root, config)
    _check_new(root)
    run = RunDirectory(root, run_id, uuid.uuid4().hex[:12], 0, config)
    told = {"run_id": run_id, "key": run.key, "created": time.time(), **run.resolved()}
    write_json(root / "run.json", told, within=root)
    return run


def check_out(root: Path, config: RunConfig, *, resume: bool = True) -> None:
    """Whether `config` can start or go on at `root`: looked at before anything is prepared, started or written there.

    Raises `RunDirectoryError` (also `LockedError`) as `open_run` and the writer's lock would.
    """
    existed = root.exists()
    if root.is_dir() and not (root / "run.json").is_file():
        _check_new(root)  # before the lock's file is put into a folder that is not ours
    with writer_lock(root):
        if (root / "run.json").is_file():
            _check_resume(root, resume)
            _check_same(load_run(root), config)
    if not existed:
        (root / ".lock").unlink()
        root.rmdir()


def fork_run(root: Path, version: int, config: RunConfig) -> RunDirectory:
    """Begin a new lineage from policy version `version`, after as many steps, under `config`; takes the lock.

    What the run made after it is kept in ``lineages/<old>/``. Refused where that version cannot be rebuilt.
    """
    with writer_lock(root):
        stored = load_run(root)
        _check_whole(stored)
        run = recover(stored)
        changed = [line for line in describe_differences(run.config, config) if _section(line) != "out"]
        _check_fork(run, version, config, changed)
        floor = version if _changes_updates(changed) else run.floor
        commit = None if version == 0 and _changes(changed, ("policy",)) else _commit_of(run, version)
        return begin_lineage(replace(run, config=config, floor=floor), Beginning(commit, "fork", tuple(changed)))


def _check_fork(run: RunDirectory, version: int, config: RunConfig, changed: list[str]) -> None:
    latest = read_latest(run)
    done = 0 if latest is None else latest.policy_version
    if latest is None or not 0 <= version <= done:
        raise RunDirectoryError(f"{run.root}: cannot fork after {version} steps: {done} are committed")
    if config.steps < version:
        raise RunDirectoryError(f"{run.root}: steps: {config.steps} were asked for, the fork alone has {version}")
    if version and _changes(changed, ("policy",)):
        raise RunDirectoryError(f"{run.root}: another starting policy needs --fork 0, or a new run")
    points = restore_points(run, version)
    if _changes_updates(changed):
        _check_exact(run, version, points)
    damage = Inspector(run).damage_of(version) if version else []
    if damage or not points:
        told = "; ".join(f"{each.path}: {each.what}" for each in damage) or "no checkpoint before it is left"
        raise RunDirectoryError(f"{run.root}: policy version {version} cannot be rebuilt: {told}; fork elsewhere")


def _check_exact(run: RunDirectory, version: int, points: list[int]) -> None:
    """With other settings of the update no batch can be replayed: the full state itself must be there."""
    if version in points:
        if version and not is_checkpoint_whole(folder := run.checkpoint_path(version)):
            raise RunDirectoryError(f"{folder}: damaged; fork from another step whose state is kept, or restore it")
        return
    held = [*([0] if run.floor == 0 else []), *reversed(restore_points(run, 10**6)[: -1 if run.floor == 0 else None])]
    rule = run.config.checkpoint
    raise RunDirectoryError(
        f"{run.root}: other settings of policy, objective or optimizer need the full state of version {version}; "
        f"there are those of {', '.join(str(each) for each in held) or 'none'}: fork from one of these. A run "
        f"keeps each that it writes with --set checkpoint.keep_every={rule.every} (now {rule.keep_every or 'off'}), "
        "also from when it is resumed"
    )


def _commit_of(run: RunDirectory, version: int) -> Latest:
    if version:
        return Inspector(run).commit_of(version)
    path = "policy/000000.json"
    return Latest(-1, 0, run.lineage, FileRef(path, sha256_hex((run.root / path).read_bytes())), None)


def _check_new(root: Path) -> None:
    if any((root / name).exists() for name in ("LATEST", "steps", "policy")):
        raise RunDirectoryError(f"{root}: holds a run without run.json; restore that file or choose another --out")
    foreign = [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    if foreign and not _only_logs(foreign):
        raise RunDirectoryError(f"{root}: not empty and not a run ({', '.join(foreign[:3])} …); choose another --out")


def _check_resume(root: Path, resume: bool) -> None:
    if not resume:
        raise RunDirectoryError(
            f"{root}: a run is here already and a new one was asked for; choose another --out, "
            f"or go on with this one: seeker resume {root}"
        )


def _check_whole(run: RunDirectory) -> None:
    """Whether the stored configuration is the one that the run was made under: its digest stands beside it."""
    told = run.describe()
    if told.get("config_digest") not in (None, settings_digest(told["config"])):
        raise RunDirectoryError(
            f"{run.root / 'run.json'}: damaged or changed by hand, its configuration has not the digest beside it; "
            "restore the file (settings are changed by `seeker resume RUN --fork STEPS --set …`)"
        )


def _check_same(run: RunDirectory, config: RunConfig) -> None:
    _check_whole(run)
    changed = describe_differences(run.config, config)
    differing = [line for line in changed if _section(line) not in EXECUTION_FIELDS]
    if differing:
        raise RunDirectoryError(
            f"{run.root}: this run was started with another configuration: {'; '.join(differing)}; use the same values "
            "to go on with it, --out for a new run, or `seeker resume RUN --fork STEPS` to change them from there on"
        )
    done = _committed(run)
    if config.steps < done:
        raise RunDirectoryError(
            f"{run.root}: steps: {done} are committed already, {config.steps} were asked for; "
            f"ask for {done} or more, or choose another --out"
        )


def _committed(run: RunDirectory) -> int:
    """Committed steps, as far as `LATEST` can be read: opening the run mends it."""
    try:
        latest = read_latest(run)
    except RunDirectoryError:
        return 0
    return 0 if latest is None else latest.policy_version


def _go_on(root: Path, config: RunConfig) -> RunDirectory:
    stored = load_run(root)
    _check_same(stored, config)
    run = recover(replace(stored, config=config))
    run.amend(run.resolved())
    return run


def _changes_updates(changed: list[str]) -> bool:
    return _changes(changed, UPDATE_FIELDS)


def _changes(changed: list[str], sections: tuple[str, ...]) -> bool:
    return any(_section(line) in sections for line in changed)


def _section(line: str) -> str:
    """The first name of ``rollout.group_size: 8 -> 4``."""
    return line.partition(":")[0].partition(".")[0]


def _only_logs(names: list[str]) -> bool:
    return all(name == "logs" or name.endswith(".log") for name in names)
