"""Full trainer states: `checkpoints/000010/` is the state at policy version 10.

The trainer writes a checkpoint beside its place, flushed, and renames it, so a folder with its final name is complete.
"""

from __future__ import annotations

import shutil

from seeker.runs.directory import RunDirectory


def checkpoint_versions(run: RunDirectory) -> list[int]:
    """Versions with a complete checkpoint, ascending."""
    folder = run.root / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def newest_checkpoint(run: RunDirectory, version: int) -> int | None:
    """The newest checkpointed version that is not after `version`; None when the start is the only way."""
    return max((found for found in checkpoint_versions(run) if found <= version), default=None)


def prune_checkpoints(run: RunDirectory, keep: int) -> None:
    """Keep the newest `keep` checkpoints. The caller has seen the newest read back whole."""
    for version in checkpoint_versions(run)[:-keep]:
        shutil.rmtree(run.checkpoint_path(version))
