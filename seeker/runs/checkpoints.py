"""Full trainer states: `checkpoints/000010/` is the state at policy version 10.

A checkpoint is written beside its place and renamed into it once its files and their digests are on the disk, so a
folder with its final name is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from seeker.errors import RunDirectoryError
from seeker.runs.directory import RunDirectory
from seeker.runs.files import read_json, sha256_hex, sync_folder, write_json

INVENTORY = "inventory.json"


def write_checkpoint(target: Path, save: Callable[[Path], None]) -> None:
    """Let `save` fill a folder, then make it appear at `target` whole. Does nothing when `target` is there already."""
    if target.is_dir():
        return
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save(partial)
    inventory = {path.name: _flush_and_digest(path) for path in sorted(partial.iterdir())}
    write_json(partial / INVENTORY, {"files": inventory})
    os.replace(partial, target)
    sync_folder(target.parent)


def check_checkpoint(folder: Path) -> None:
    """Raise when a file of the checkpoint is missing or damaged."""
    for name, digest in read_json(folder / INVENTORY)["files"].items():
        path = folder / name
        if not path.is_file() or sha256_hex(path.read_bytes()) != digest:
            raise RunDirectoryError(f"{path}: damaged; delete the folder {folder.name}, an older checkpoint is used")


def checkpoint_versions(run: RunDirectory) -> list[int]:
    """Versions with a complete checkpoint, ascending."""
    folder = run.root / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def newest_checkpoint(run: RunDirectory, version: int) -> int | None:
    """The newest checkpointed version that is not after `version`; None when the start is the only way."""
    return max((found for found in checkpoint_versions(run) if found <= version), default=None)


def prune_checkpoints(run: RunDirectory, keep: int) -> None:
    """Keep the newest `keep` checkpoints, once the newest was read back whole."""
    versions = checkpoint_versions(run)
    if len(versions) <= keep:
        return
    check_checkpoint(run.checkpoint_path(versions[-1]))
    for version in versions[:-keep]:
        shutil.rmtree(run.checkpoint_path(version))


def _flush_and_digest(path: Path) -> str:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return sha256_hex(file.read())
