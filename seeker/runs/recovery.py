"""Opening a run that may have been killed, torn or damaged: from the disk as it is to a commit to go on from.

1. A lineage that was decided and not carried out is carried out.
2. Temporary files of dead writers are removed.
3. The last commit and what rebuilds it are checked. Where something is missing or damaged, the run goes back to the
   newest commit that is whole, as a new lineage: what a cache holds about the lost steps is not believed any more.
4. Records that nothing depends on (manifests long before, evaluations) are put aside where they are damaged.
5. Where nothing was damaged, published objects that no version names go: each start of a run leaves an anchor, which is
   as large as the policy, and which nothing needs when no step is committed after it.

Each of these can be killed and done again. What was found is an event and a note of the opened run.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from seeker.errors import RunDirectoryError
from seeker.runs import disk
from seeker.runs.commits import Latest, read_latest, replace_latest
from seeker.runs.damage import Damage, Inspector
from seeker.runs.directory import RunDirectory
from seeker.runs.files import FileRef, read_sealed, sha256_hex
from seeker.runs.lineages import Beginning, begin_lineage, put_aside, settle_lineage, steps_after
from seeker.runs.lock import is_alive
from seeker.runs.retention import unnamed_objects

_TEMPORARY = re.compile(r"^\..+\.(?P<host>[^/]+)-(?P<pid>\d+)\.tmp$")
_KEPT = ("lineages", "damaged", "logs", "export")  # folders where nothing is written by halves
_FOREIGN_AGE_S = 3600.0  # of a temporary file of another host, whose writer cannot be looked at


def recover(run: RunDirectory) -> RunDirectory:
    """The run as it can be gone on with. The caller holds the writer's lock."""
    settle_lineage(run)
    remove_leftovers(run.root)
    run = _go_back(run)
    notes = (*run.notes, *_put_records_aside(run))
    if not notes:
        for folder in unnamed_objects(run.root):
            disk.remove_tree(folder)
    return replace(run, notes=notes)


def remove_leftovers(root: Path) -> None:
    """Remove temporary files and folders whose writers are dead."""
    for path in list(_temporaries(root)):
        if path.is_dir():
            disk.remove_tree(path)
        else:
            disk.remove(path)


def _temporaries(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if here == root:
            folders[:] = [name for name in folders if name not in _KEPT]
        found = [name for name in (*folders, *files) if _is_left_over(here / name)]
        folders[:] = [name for name in folders if name not in found]
        yield from (here / name for name in found)


def _is_left_over(path: Path) -> bool:
    match = _TEMPORARY.match(path.name)
    if match is None:
        return False
    if match["host"] == socket.gethostname():
        return int(match["pid"]) == os.getpid() or not is_alive(int(match["pid"]))
    return time.time() - path.stat().st_mtime > _FOREIGN_AGE_S


def _go_back(run: RunDirectory) -> RunDirectory:
    """The run at its newest commit that is whole: most often the last one."""
    inspector = Inspector(run)
    latest, damage = _last_commit(run)
    top = max(steps_after(run.root, 0), default=-1) + 1 if latest is None else latest.policy_version
    if latest is None and not top and not damage:
        return run  # nothing was ever committed
    version = top
    while version > 0 and (found := inspector.damage_of(version)):
        damage += found
        version -= 1
    commit = inspector.commit_of(version) if version else _start(run, latest, damage)
    if (0 if commit is None else commit.policy_version) < run.floor:
        raise RunDirectoryError(f"{run.root}: no commit can be gone on from: {_told(damage)}; {_FLOOR_REMEDY}")
    if commit is not None and commit.policy_version == top:
        if latest is not None and latest.manifest == commit.manifest:
            return run
        return _mend_latest(run, commit, damage or [Damage("LATEST", "missing" if latest is None else "names another")])
    return _abandon(run, commit, top, damage)


_FLOOR_REMEDY = "restore one of these files from a copy, or fork from an earlier step in lineages/ as a new run"


def _last_commit(run: RunDirectory) -> tuple[Latest | None, list[Damage]]:
    try:
        return read_latest(run), []
    except RunDirectoryError as error:
        return None, [Damage("LATEST", str(error).partition(": ")[2])]


def _start(run: RunDirectory, latest: Latest | None, damage: list[Damage]) -> Latest | None:
    """The commit of the starting policy; None when it must be published again."""
    path = "policy/000000.json"
    if not (run.root / path).is_file():
        damage.append(Damage(path, "missing"))
        return None
    ref = FileRef(path, sha256_hex(disk.read(run.root / path)))
    if latest is not None and latest.step < 0 and latest.policy != ref:
        damage.append(Damage(path, "damaged"))
        return None
    return Latest(-1, 0, run.lineage, ref, None)


def _mend_latest(run: RunDirectory, commit: Latest, damage: list[Damage]) -> RunDirectory:
    """Only `LATEST` was lost or damaged: every step is there."""
    put_aside(run.root, "LATEST", f"damaged/{run.lineage:03d}")
    replace_latest(run, commit)
    found = _told(damage)
    run.events.record("latest_mended", damaged=found, policy_version=commit.policy_version)
    return replace(run, notes=(f"{found}; written again for policy version {commit.policy_version}, nothing is lost",))


def _abandon(run: RunDirectory, commit: Latest | None, top: int, damage: list[Damage]) -> RunDirectory:
    paths = tuple(dict.fromkeys(each.path for each in damage if each.path != "checkpoints"))
    beginning = Beginning(commit, "damage", damaged=paths)
    fresh = begin_lineage(run, beginning)
    first = max(beginning.version, 0)
    lost = f"lost: the steps {first} to {top - 1}" if top > first else "no step is lost"
    note = (
        f"{_told(damage)}. {lost}; going on from policy version {first} as lineage {fresh.lineage}. "
        f"What was put aside is in damaged/{run.lineage:03d} and lineages/{run.lineage:03d} of {run.root}"
    )
    return replace(fresh, notes=(note,))


def _put_records_aside(run: RunDirectory) -> list[str]:
    """Damaged manifests before the last commit and damaged evaluations: the run goes on without them."""
    latest, _ = _last_commit(run)
    found = Inspector(run).damaged_manifests(0 if latest is None else latest.next_step)
    for path in sorted((run.root / "evaluations").glob("*.json")):
        try:
            read_sealed(path)
        except RunDirectoryError as error:
            found.append(Damage(str(path.relative_to(run.root)), str(error).partition(": ")[2].partition(";")[0]))
    for damage in found:
        if (run.root / damage.path).exists():
            put_aside(run.root, damage.path, f"damaged/{run.lineage:03d}")
            run.events.record("record_damaged", path=damage.path, what=damage.what)
    return [f"{each.path}: {each.what}; its metrics are lost, the run goes on" for each in found]


def _told(damage: list[Damage]) -> str:
    return "; ".join(dict.fromkeys(f"{each.path}: {each.what}" for each in damage))
