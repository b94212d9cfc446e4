"""A run directory that was damaged while nobody wrote it.

1. Any file that the last commit names, or that rebuilds it, cut, changed or deleted: the run goes back to the newest
   commit that is whole, as a new lineage, and ends as a run without trouble; nothing is deleted.
2. What was lost and where the run goes on from is a note and an event that name file, cause, steps and place.
3. `LATEST` damaged or gone costs nothing: it is written again, in the same lineage.
4. Damage all the way down: from the starting policy, or from nothing, on.
5. A manifest long before the last commit, or an evaluation, is put aside; no step is lost.
6. Killed at any operation of the mending, the next start mends it to the same end.
7. Temporary files of dead writers go, those of living ones stay.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from seeker.errors import RunDirectoryError
from seeker.runs import load_run, open_run, read_latest, read_metrics, writer_lock
from seeker.runs.disk import use_disk
from seeker.runs.files import dump_json, sealed
from seeker.runs.recovery import remove_leftovers
from tests.runs.faults import Killed, ScriptedDisk
from tests.runs.scripted_run import final_policy, outcome, play, play_until, scripted_config

CONFIG = scripted_config(steps=4, checkpoint={"every": 2, "keep": 2})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS = {"cut": cut, "changed": change, "deleted": Path.unlink}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    play(root, CONFIG)
    return root


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was gone right after the commit of its third step; its newest checkpoint is of version 2."""
    root = tmp_path_factory.mktemp("three")
    play_until(root, CONFIG, 3)
    return root


@pytest.fixture
def root(three: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(three, tmp_path / "run"))


def same_end(root: Path, whole: Path) -> bool:
    """Everything that does not name lineages is equal."""
    found, expected = history(root), history(whole)
    assert sorted(found) == sorted(expected)
    return found == expected


def history(root: Path) -> dict[str, bytes]:
    told = ("manifest.json", "LATEST", "checkpoint.json")
    aside = ("damaged/", "lineages/")
    return {
        name: data for name, data in outcome(root).items() if not name.endswith(told) and not name.startswith(aside)
    }


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize(
    "name",
    [
        "steps/000002/manifest.json",
        "steps/000002/batch.bin",
        "steps/000002/rollouts/call-001.parquet",
        "policy/000003.json",
        "policy/app/s/0f/000004.patch",
    ],
)
def test_back_to_the_newest_whole_commit(name: str, harm: Callable[[Path], None], root: Path, whole: Path) -> None:
    before = (root / name).read_bytes()
    harm(root / name)
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    latest = read_latest(run)
    assert latest is not None
    assert (latest.policy_version, latest.lineage, run.lineage) == (2, 1, 1)
    assert f"{name}: " in run.notes[0]
    assert "lost: the steps 2 to 2; going on from policy version 2 as lineage 1" in run.notes[0]
    assert "damaged/000 and lineages/000" in run.notes[0]
    event = next(event for event in run.events.read() if event["event"] == "lineage_begun")
    assert (event["from_version"], event["damaged"], event["reason"]) == (2, [name], "damage")
    if harm is not Path.unlink:
        assert (root / "damaged" / "000" / name).read_bytes() != before
    kept = root / "lineages" / "000"
    assert (kept / "steps/000002/rollouts/call-000.parquet").is_file()
    assert (kept / "policy/000003.json").is_file() == (name != "policy/000003.json")
    play(root, CONFIG)
    assert same_end(root, whole)


def test_a_batch_that_rebuilds_the_last_commit_takes_the_steps_after_it_along(tmp_path: Path, whole: Path) -> None:
    config = scripted_config(steps=4, checkpoint={"every": 9, "keep": 2})
    play_until(tmp_path, config, 3)
    change(tmp_path / "steps/000001/batch.bin")
    with writer_lock(tmp_path):
        run = open_run(tmp_path, config, "scripted")
    assert "lost: the steps 1 to 2; going on from policy version 1" in run.notes[0]
    play(tmp_path, config)
    assert final_policy(tmp_path) == final_policy(whole)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_the_last_commit_alone_is_written_again(harm: Callable[[Path], None], root: Path, whole: Path) -> None:
    before = (root / "LATEST").read_bytes()
    harm(root / "LATEST")
    if harm is not Path.unlink:
        with pytest.raises(RunDirectoryError, match="LATEST: damaged"):
            read_latest(load_run(root))
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    assert (root / "LATEST").read_bytes() == before
    assert run.lineage == 0
    assert "nothing is lost" in run.notes[0]
    assert run.events.count("latest_mended") == 1
    play(root, CONFIG)
    assert same_end(root, whole)


def test_damage_all_the_way_down(root: Path, whole: Path) -> None:
    for path in root.glob("steps/*/manifest.json"):
        cut(path)
    change(root / "LATEST")
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    latest = read_latest(run)
    assert latest is not None
    assert (latest.step, latest.policy_version, run.lineage) == (-1, 0, 1)
    play(root, CONFIG)
    assert same_end(root, whole)


def test_even_the_start_is_lost(tmp_path: Path, whole: Path) -> None:
    root = tmp_path
    play_until(root, CONFIG, 0)
    change(root / "policy/000000.json")
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    assert (read_latest(run), run.lineage) == (None, 1)
    play(root, CONFIG)
    assert same_end(root, whole)


def test_records_that_nothing_depends_on_are_put_aside(root: Path, whole: Path) -> None:
    cut(root / "steps/000000/manifest.json")
    cut(root / "evaluations/000001-heldout-greedy.json")
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    latest = read_latest(run)
    assert latest is not None
    assert (latest.policy_version, run.lineage) == (3, 0)
    assert [note.partition(":")[0] for note in run.notes] == [
        "steps/000000/manifest.json",
        "evaluations/000001-heldout-greedy.json",
    ]
    assert (root / "damaged/000/steps/000000/manifest.json").is_file()
    play(root, CONFIG)
    assert final_policy(root) == final_policy(whole)
    assert [row["step"] for row in read_metrics(root)] == [-1, 1, 2, 3]


def test_a_manifest_of_another_history_is_put_aside(root: Path) -> None:
    """Put back from a copy: whole in itself, but not the one that the next step followed."""
    name = "steps/000000/manifest.json"
    told = {**json.loads((root / name).read_text()), "metrics": {"reward": 99}}
    (root / name).write_bytes(dump_json(sealed(told)))
    with writer_lock(root):
        run = open_run(root, CONFIG, "scripted")
    assert run.notes == (f"{name}: not the one that step 1 followed; its metrics are lost, the run goes on",)
    assert not (root / name).exists()


def test_killed_at_any_operation_of_the_mending(three: Path, whole: Path, tmp_path: Path) -> None:
    def harmed() -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        root = Path(shutil.copytree(three, tmp_path / "run"))
        cut(root / "steps/000002/batch.bin")
        change(root / "LATEST")
        cut(root / "steps/000000/manifest.json")
        return root

    def mend(root: Path, disk: ScriptedDisk) -> None:
        with use_disk(disk), writer_lock(root):
            open_run(root, CONFIG, "scripted")

    mend(harmed(), disk := ScriptedDisk())
    assert len(disk.operations) > 30
    for at, operation in enumerate(disk.operations):
        root = harmed()
        with pytest.raises(Killed):
            mend(root, ScriptedDisk(at, ("before", "torn", "power")[at % 3]))
        run = load_run(root)
        mend(root, ScriptedDisk())
        assert load_run(root).lineage == 1, f"{at}: {operation}"
        assert run.lineage in (0, 1)
        with use_disk(ScriptedDisk()):
            play(root, CONFIG)
        assert final_policy(root) == final_policy(whole), f"{at}: {operation}"
        assert (root / "lineages/000/steps/000002/manifest.json").is_file()
        assert (root / "damaged/000/steps/000002/batch.bin").is_file()


def test_temporary_files_of_the_dead_go(tmp_path: Path) -> None:
    host = socket.gethostname()
    dead = 2**22 + 1  # above the largest process id there is
    gone = [tmp_path / f".a.{host}-{dead}.tmp", tmp_path / "checkpoints" / f".000002.{host}-{dead}.tmp" / "state"]
    kept = [
        tmp_path / f".b.{host}-{os.getppid()}.tmp",
        tmp_path / ".c.elsewhere-1.tmp",
        tmp_path / "lineages" / f".d.{host}-{dead}.tmp",
        tmp_path / "notes.tmp",
    ]
    for path in (*gone, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    old = tmp_path / ".e.elsewhere-1.tmp"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
