"""Full trainer states: `checkpoints/000010/` is the state at policy version 10.

A checkpoint is written beside its place, flushed, read back and compared, and only then renamed: a folder with its
final name is complete and was verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import xxhash

from seeker.errors import CheckpointError, RunDirectoryError, StorageError
from seeker.runs import disk
from seeker.runs.directory import RunDirectory
from seeker.runs.disk import Buffer
from seeker.runs.files import read_json

STATE, FACTS = "state.safetensors", "trainer.json"


def checkpoint_versions(run: RunDirectory) -> list[int]:
    """Versions with a complete checkpoint, ascending."""
    folder = run.root / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def newest_checkpoint(run: RunDirectory, version: int) -> int | None:
    """The newest checkpointed version that is not after `version`; None when the start is the only way."""
    return max((found for found in checkpoint_versions(run) if found <= version), default=None)


def restore_points(run: RunDirectory, version: int) -> list[int]:
    """Versions that a trainer can start from to reach `version` by replaying batches, newest first.

    0 stands for the starting policy. Nothing below the run's floor counts: those updates had other settings.
    """
    checkpoints = [found for found in checkpoint_versions(run) if max(run.floor, 1) <= found <= version]
    return [*reversed(checkpoints), *([0] if run.floor == 0 else [])]


def store_checkpoint(folder: Path, files: Mapping[str, Sequence[Buffer]]) -> None:
    """Write `folder` with `files`, given in pieces, whole and verified or not at all.

    A checkpoint that is there already stays when it holds the same; else the new one takes its place.
    """
    run = folder.parent.parent
    disk.make_folders(folder.parent, run if run.is_dir() else None)
    if folder.is_dir() and _holds(folder, files):
        return
    fresh = disk.temporary_name(folder)
    try:
        _fill(fresh, files)
    except (StorageError, CheckpointError):
        _discard(fresh)
        raise
    if folder.is_dir():
        old = disk.temporary_name(folder.with_name(f"{folder.name}.old"))
        disk.rename(folder, old)
        disk.rename(fresh, folder)
        disk.remove_tree(old)
    else:
        disk.rename(fresh, folder)
    disk.sync(folder.parent)


def is_checkpoint_whole(folder: Path) -> bool:
    """True when the state has the digest that was written down beside it. Reads all of it."""
    try:
        return _read_digest(folder / STATE) == read_json(folder / FACTS).get("state_digest")
    except (OSError, RunDirectoryError):
        return False


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint so that a half-removed one never bears its name."""
    gone = disk.temporary_name(folder)
    disk.rename(folder, gone)
    disk.remove_tree(gone)


def _fill(folder: Path, files: Mapping[str, Sequence[Buffer]]) -> None:
    if folder.is_dir():
        disk.remove_tree(folder)
    disk.make_folders(folder)
    for name, data in files.items():
        disk.write(folder / name, data)
        disk.sync(folder / name)
    disk.sync(folder)
    if not _holds(folder, files):
        raise CheckpointError(f"{folder}: does not read back as it was written; look at the disk")


def _holds(folder: Path, files: Mapping[str, Sequence[Buffer]]) -> bool:
    return all(
        (folder / name).is_file() and _read_digest(folder / name) == digest_of(pieces) for name, pieces in files.items()
    )


def digest_of(pieces: Iterable[Buffer]) -> str:
    """xxh3 of a file given in pieces."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _read_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return digest_of(iter(lambda: file.read(1 << 22), b""))


def _discard(folder: Path) -> None:
    """Remove what was not finished. Where even that fails, the next writer of the run removes it."""
    try:
        if folder.is_dir():
            disk.remove_tree(folder)
    except (StorageError, OSError):
        return  # the caller raises what came first
