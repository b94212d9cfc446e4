"""Which checkpoints and batches stay.

1. The newest N, the best by greedy held-out exact match (a tie goes to the newer), every M: each rule alone and all.
2. Nothing from the verified one on goes, nor the start of a lineage with other settings.
3. Whatever the rule and the scores, something to restore from is always left.
4. "all" keeps every batch; "rebuild" keeps those that some kept checkpoint is replayed with.
5. A checkpoint bears its name only when it read back as it was written; one that is there and whole stays as it is.
6. Published objects that no version of any lineage names go when a run is opened, unless a manifest is damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.config import CheckpointConfig
from seeker.errors import CheckpointError
from seeker.runs import checkpoint_versions, kept_checkpoints, open_run, store_checkpoint, write_file, write_json
from seeker.runs.commits import commit_start
from seeker.runs.disk import Buffer, Disk, use_disk
from seeker.runs.files import dump_json
from seeker.runs.policies import FolderObjects
from seeker.runs.recovery import recover
from seeker.runs.retention import unnamed_objects
from tests.runs.scripted_run import play, scripted_config

VERSIONS = [10, 20, 30, 40, 50, 60]
SCORES = {10: 0.2, 20: 0.4, 40: 0.4, 50: 0.3}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"keep": 2}, {50, 60}),
        ({"keep": 1, "keep_best": 1}, {40, 60}),
        ({"keep": 1, "keep_best": 2}, {20, 40, 60}),
        ({"keep": 1, "keep_every": 30}, {30, 60}),
        ({"keep": 2, "keep_best": 1, "keep_every": 20}, {20, 40, 50, 60}),
        ({"keep": 9}, set(VERSIONS)),
    ],
)
def test_rules(rule: dict[str, int], kept: set[int]) -> None:
    assert kept_checkpoints(VERSIONS, SCORES, CheckpointConfig(**rule), verified=60) == kept


def test_what_is_not_verified_and_what_a_lineage_began_with_stay() -> None:
    rule = CheckpointConfig(keep=1)
    assert kept_checkpoints(VERSIONS, {}, rule, verified=40) == {40, 50, 60}
    assert kept_checkpoints(VERSIONS, {}, rule, verified=60, floor=20) == {20, 60}


@given(
    versions=st.sets(st.integers(1, 99), min_size=1),
    scores=st.dictionaries(st.integers(1, 99), st.floats(0, 1)),
    keep=st.integers(1, 4),
    best=st.integers(0, 3),
    every=st.integers(0, 9),
    data=st.data(),
)
def test_something_to_restore_from_is_always_left(
    versions: set[int], scores: dict[int, float], keep: int, best: int, every: int, data: st.DataObject
) -> None:
    verified = data.draw(st.sampled_from(sorted(versions)))
    rule = CheckpointConfig(keep=keep, keep_best=best, keep_every=every)
    kept = kept_checkpoints(versions, scores, rule, verified=verified)
    assert kept <= versions
    assert {verified, max(versions)} <= kept
    assert len(kept) >= min(keep, len(versions))


@pytest.mark.parametrize(("batches", "left"), [("all", [0, 1, 2, 3, 4]), ("rebuild", [2, 3, 4])])
def test_batches(batches: str, left: list[int], tmp_path: Path) -> None:
    run = play(
        tmp_path, scripted_config(steps=5, checkpoint={"every": 1, "keep": 1, "keep_every": 2, "batches": batches})
    )
    assert checkpoint_versions(run) == [2, 4, 5]
    assert [step for step in range(5) if (tmp_path / run.step_path(step) / "batch.bin").is_file()] == left


def test_a_checkpoint_that_does_not_read_back_gets_no_name(tmp_path: Path) -> None:
    class Forgetful(Disk):
        def write(self, path: Path, data: Sequence[Buffer]) -> None:
            super().write(path, [b"".join(data)[:-1] + b"?"])

    folder = tmp_path / "checkpoints" / "000002"
    with use_disk(Forgetful()), pytest.raises(CheckpointError, match="does not read back"):
        store_checkpoint(folder, {"state": [b"123", b"45"]})
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_whole_checkpoint_stays_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "000002"
    store_checkpoint(folder, {"state": [b"123", b"45"]})
    before = (folder / "state").stat().st_ino
    store_checkpoint(folder, {"state": [b"123", b"45"]})
    assert (folder / "state").stat().st_ino == before
    (folder / "state").write_bytes(b"1234?")
    store_checkpoint(folder, {"state": [b"123", b"45"]})
    assert (folder / "state").read_bytes() == b"12345"
    assert [path.name for path in folder.parent.iterdir()] == ["000002"]


def publish_as(root: Path, version: int, *keys: str) -> None:
    """A version that names objects of these keys."""
    write_json(root / "policy" / f"{version:06d}.json", {"version": version, "shards": [{"key": key} for key in keys]})


def test_anchors_that_no_version_names_go(tmp_path: Path) -> None:
    play(tmp_path, scripted_config())
    objects = FolderObjects(tmp_path / "policy")
    for version in range(3):
        publish_as(tmp_path, version, "app/s/0f", "app/s/1a")
    publish_as(tmp_path / "lineages/000", 2, "app/s/2b")
    for key in ("app/s/1a", "app/s/2b", "app/s/3c"):
        objects.store(key, 1, b"an anchor", "base")
    assert unnamed_objects(tmp_path) == [tmp_path / "policy/app/s/3c"]
    (tmp_path / "policy/000001.json").write_text("{")  # what it named is not known
    assert unnamed_objects(tmp_path) == []


def test_a_run_that_is_opened_over_and_over_keeps_what_its_versions_name(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    run = open_run(root, scripted_config(), "scripted")
    commit_start(run, write_file(root, "policy/000000.json", dump_json({"shards": [{"key": "app/s/0f"}]})))
    objects = FolderObjects(root / "policy")
    for key in ("app/s/0f", "app/t/0f", "app/u/0f"):
        objects.store(key, 1, b"an anchor", "base")
        objects.store(key, 2, b"a delta", "patch")
    recover(run)
    assert [path.parent.name for path in sorted(root.glob("policy/app/*/0f"))] == ["s"]
    assert (root / "policy/app/s/0f/000002.patch").is_file()
