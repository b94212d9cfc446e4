"""Lineages: a history that is abandoned after some commit, and the one that is begun there.

Nothing is deleted: what the old lineage made after that commit goes to ``lineages/<old>/`` under the same names,
damaged files to ``damaged/<old>/``. Objects of published versions stay in `policy/`, where manifests name what they
need.

The decision is written into `run.json` first, with the commit it goes back to; then files move; then `LATEST` is
replaced. Killed anywhere between, the next writer finds the decision there and carries it out to its end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from seeker.runs import disk
from seeker.runs.commits import Latest, replace_latest
from seeker.runs.directory import RunDirectory
from seeker.runs.files import Json, write_json

_NUMBERED = re.compile(r"^(\d{6})(?:$|[.-])")


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a lineage begins, and why.

    Example: ``Beginning(commit=Latest(step=11, …), reason="fork", changed=("rollout.group_size: 8 -> 4",))``
    """

    commit: Latest | None  # None: from nothing
    reason: str  # "fork", "damage" or "replay"
    changed: tuple[str, ...] = ()  # fields of the configuration
    damaged: tuple[str, ...] = ()  # files to put aside

    @property
    def version(self) -> int:
        """The policy version that it goes on from; -1 when even the start is done again."""
        return -1 if self.commit is None else self.commit.policy_version


def begin_lineage(run: RunDirectory, beginning: Beginning) -> RunDirectory:
    """Go back to a commit; `run` brings the configuration and the floor of what follows. The caller holds the lock."""
    fresh = replace(run, lineage=run.lineage + 1)
    told = run.describe()
    entry: Json = {
        "lineage": fresh.lineage,
        "from_version": beginning.version,
        "reason": beginning.reason,
        "changed": list(beginning.changed),
        "damaged": list(beginning.damaged),
        "steps_left": steps_after(run.root, beginning.version),
        "time": time.time(),
    }
    commit = None if beginning.commit is None else beginning.commit.to_json()
    pending: Json = {"old": run.lineage, "commit": commit, "damaged": list(beginning.damaged), "entry": entry}
    run.amend({**fresh.resolved(), "lineages": [*told.get("lineages", []), entry], "pending": pending})
    settle_lineage(fresh)
    return fresh


def settle_lineage(run: RunDirectory) -> None:
    """Carry out the decision that `run.json` holds, if any. Doing so again does no harm."""
    told = run.describe()
    pending = told.get("pending")
    if pending is None:
        return
    commit = None if pending["commit"] is None else Latest.from_json(pending["commit"])
    for path in pending["damaged"]:
        put_aside(run.root, path, f"damaged/{pending['old']:03d}")
    version = -1 if commit is None else commit.policy_version
    later = [*_later(run.root, version), *(["LATEST"] if commit is None else [])]
    for path in later:
        put_aside(run.root, path, f"lineages/{pending['old']:03d}")
    if commit is not None:
        replace_latest(run, replace(commit, lineage=run.lineage))
    run.events.record("lineage_begun", **pending["entry"])
    write_json(
        run.root / "run.json", {name: value for name, value in told.items() if name != "pending"}, within=run.root
    )


def put_aside(root: Path, path: str, under: str) -> None:
    """Move `path` to the same name below `under`; nothing where it is not there (any more)."""
    source = root / path
    if not source.exists():
        return
    target = wanted = root / under / path
    number = 1
    while target.exists():
        number += 1
        target = wanted.with_name(f"{wanted.name}.{number}")
    disk.make_folders(target.parent, root)
    disk.rename(source, target)
    disk.sync(target.parent)
    disk.sync(source.parent)


def steps_after(root: Path, version: int) -> list[int]:
    """Steps with a manifest that made later policy versions than `version`."""
    paths = _numbered(root / "steps")
    return sorted(step for step, path in paths if step >= version and (path / "manifest.json").is_file())


def _later(root: Path, version: int) -> list[str]:
    """What was made after the commit of `version`, and on the way to the next, relative to the run directory."""
    found = [path for step, path in _numbered(root / "steps") if step >= version]
    for folder in ("checkpoints", "policy", "evaluations"):
        found += [path for number, path in _numbered(root / folder) if number > version]
    return sorted(str(path.relative_to(root)) for path in found)


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """Entries whose name begins with a step or version: ``000003``, ``000004.json``, ``000010-heldout-greedy.json``."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NUMBERED.match(path.name)
        if match:
            yield int(match[1]), path
