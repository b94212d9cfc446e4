"""Which checkpoints, batches and published objects are kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from seeker.config import CheckpointConfig
from seeker.errors import RunDirectoryError
from seeker.runs import disk
from seeker.runs.checkpoints import checkpoint_versions, remove_checkpoint
from seeker.runs.directory import RunDirectory
from seeker.runs.files import read_json
from seeker.runs.views import greedy_scores

_OBJECT_PART = re.compile(r"^\d{6}\.(base|patch)$")  # see policies.py


def kept_checkpoints(
    versions: Collection[int], scores: Mapping[int, float], rule: CheckpointConfig, *, verified: int, floor: int = 0
) -> set[int]:
    """The checkpoints to keep: the newest, the best by evaluation, every so many, and what is needed anyway.

    Nothing from `verified` on goes, the newest one that was read back: what comes after it was not. Nor does `floor`:
    where a lineage began with other settings, nothing rebuilds it.

    Example: of the versions 10, 20 … 60 with the scores ``{20: 0.4, 50: 0.3}``, ``keep=2, keep_best=1, keep_every=30``
    keeps 20 (best), 30 (every 30), 50 and 60 (newest).
    """
    ascending = sorted(versions)
    scored = sorted((version for version in versions if version in scores), key=lambda each: (scores[each], each))
    kept = set(ascending[-rule.keep :]) | {version for version in versions if version >= verified or version == floor}
    if rule.keep_best:
        kept |= set(scored[-rule.keep_best :])
    if rule.keep_every:
        kept |= {version for version in versions if version % rule.keep_every == 0}
    return kept


def prune_checkpoints(run: RunDirectory, verified: int) -> None:
    """Remove what the rule does not keep; the checkpoint of `verified` was read back whole.

    Batches go only where the configuration says so, and only those that no kept checkpoint is replayed with.
    """
    versions = checkpoint_versions(run)
    rule = run.config.checkpoint
    kept = kept_checkpoints(versions, greedy_scores(run), rule, verified=verified, floor=run.floor)
    for version in versions:
        if version not in kept:
            remove_checkpoint(run.checkpoint_path(version))
    if rule.batches == "rebuild" and kept:
        _drop_batches(run, min(kept))


def _drop_batches(run: RunDirectory, oldest: int) -> None:
    """Drop the batches of the steps before the oldest kept checkpoint, which nothing can need any more."""
    for step in range(oldest):
        path = run.root / run.step_path(step) / "batch.bin"
        if path.is_file():
            disk.remove(path)


def unnamed_objects(root: Path) -> list[Path]:
    """Folders of published objects that no version names: anchors of starts that committed no step.

    None where a manifest cannot be read: what that named is not known.
    """
    policy = root / "policy"
    manifests = [path for folder in (policy, *root.glob("lineages/*/policy")) for path in folder.glob("*.json")]
    if any(root.glob("damaged/*/policy/*.json")):
        return []
    try:
        named = {shard["key"] for path in manifests for shard in read_json(path)["shards"]}
    except (RunDirectoryError, KeyError, TypeError):
        return []
    folders = {path.parent for path in policy.rglob("*") if _OBJECT_PART.match(path.name)}
    return sorted(folder for folder in folders if str(folder.relative_to(policy)) not in named)
