"""The run directory.

1. A file is the old one or the new one: a write that dies on the way leaves the old file and no half of the new.
2. A reference is checked when it is read: damaged and missing files are errors that name the file.
3. One writer: a second is refused at once and told who holds the run; kill -9 of the holder frees it.
4. A run goes on under the same configuration; a changed field is refused by name; execution fields may change.
5. A directory that is no run, has lost its run.json, or holds another configuration in it than the run had, is refused.
6. A step is committed when LATEST names it and not before; never twice, never out of order.
7. metrics.jsonl is derived: a torn or lost file is whole again; an evaluation stands in the row of the step that made
   its version, the starting policy's in a row of step -1.
8. Events survive a torn line.
9. A directory begun again under the same name has another key, and so has a copy to caches.
10. Checkpoints are found by version; pruning keeps the newest.
11. Published objects read back from the folder as from the store, patch by patch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from seeker.cluster.objects import ObjectHandle
from seeker.errors import LockedError, ObjectMissingError, RunDirectoryError, SeekerError
from seeker.presets import settings_digest
from seeker.runs import (
    FileRef,
    current_writer,
    fork_run,
    is_intact,
    load_run,
    newest_checkpoint,
    open_run,
    prune_checkpoints,
    read_file,
    read_latest,
    read_metrics,
    write_atomic,
    write_checkpoint_summary,
    write_file,
    write_metrics,
    writer_lock,
)
from seeker.runs.policies import FolderObjects, MirroredObjects
from tests.fakes import MemoryObjects
from tests.flows.runs import commit_one, small_config, start_run, write_evaluation


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "LATEST"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_references_are_checked(tmp_path: Path) -> None:
    ref = write_file(tmp_path, "steps/000000/batch.bin", b"batch")
    assert read_file(tmp_path, FileRef.from_json(json.loads(json.dumps(ref.to_json())))) == b"batch"
    (tmp_path / ref.path).write_bytes(b"bitch")
    assert not is_intact(tmp_path, ref)
    with pytest.raises(RunDirectoryError, match=r"batch\.bin: damaged"):
        read_file(tmp_path, ref)
    (tmp_path / ref.path).unlink()
    with pytest.raises(RunDirectoryError, match=r"batch\.bin: the file is missing"):
        read_file(tmp_path, ref)


def test_second_writer_is_refused_and_told_who_holds_the_run(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from seeker.runs import writer_lock\n"
        "with writer_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        started = time.monotonic()
        told = f"{tmp_path}: this run is being written by process {holder.pid} on {socket.gethostname()}, since 20"
        with pytest.raises(LockedError, match=re.escape(told)), writer_lock(tmp_path):
            pass
        assert time.monotonic() - started < 1.0
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with writer_lock(tmp_path):
        writer = current_writer(tmp_path)
        assert writer is not None
        assert writer.pid == os.getpid()
    assert current_writer(tmp_path) is None


def test_same_configuration_goes_on_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    again = open_run(tmp_path, small_config(steps=9, cluster={"rollouts": 1}, out=str(tmp_path)), "demo")
    assert (again.key, again.lineage, again.config.steps) == (run.key, 0, 9)
    assert load_run(tmp_path).config.steps == 9
    with pytest.raises(RunDirectoryError, match=r"seed: 0 -> 4") as caught:
        open_run(tmp_path, small_config(seed=4, rollout={"group_size": 4}), "demo")
    assert "rollout.group_size: 8 -> 4" in str(caught.value)
    assert "steps" not in str(caught.value)


def test_a_run_written_before_a_field_existed_goes_on(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    told = run.describe()
    for name in ("context", "rollouts_max", "connect_deadline_s", "rank_deadline_s"):
        del told["config"]["cluster"][name]
    told["config_digest"] = settings_digest(told["config"])
    (tmp_path / "run.json").write_text(json.dumps(told))
    again = open_run(tmp_path, small_config(), "demo")
    assert (again.key, again.config.cluster.rank_deadline_s) == (run.key, 120.0)


def test_directories_that_are_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        open_run(tmp_path, small_config(), "demo")
    run = start_run(tmp_path / "run")
    (run.root / "run.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"without run\.json"):
        open_run(run.root, small_config(), "demo")


def test_damaged_run_json_is_named(tmp_path: Path) -> None:
    start_run(tmp_path)
    (tmp_path / "run.json").write_text('{"run_id": ')
    with pytest.raises(RunDirectoryError, match=r"run\.json: damaged"):
        load_run(tmp_path)


@pytest.mark.parametrize("told", [{}, {"run_id": "demo", "key": "0", "lineage": 0, "config": {"steps": "many"}}])
def test_a_run_json_of_something_else_is_named(told: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(told))
    with pytest.raises(SeekerError, match=r"run\.json: "):
        load_run(tmp_path)


def test_a_configuration_that_changed_on_the_disk_is_not_gone_on_with(tmp_path: Path) -> None:
    start_run(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    config = load_run(tmp_path).config
    for refused in (partial(open_run, tmp_path, config, "demo"), partial(fork_run, tmp_path, 0, config)):
        with pytest.raises(RunDirectoryError, match=r"run\.json: damaged or changed by hand"):
            refused()


def test_a_step_is_committed_by_latest_alone(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    before = (tmp_path / "LATEST").read_bytes()
    commit_one(run, 0, reward=0.5)
    latest = read_latest(run)
    assert latest is not None
    assert (latest.step, latest.policy_version, latest.next_step) == (0, 1, 1)
    (tmp_path / "LATEST").write_bytes(before)  # as if killed before the replacement
    latest = read_latest(run)
    assert latest is not None
    assert latest.next_step == 0
    commit_one(run, 0, reward=0.5)
    with pytest.raises(RunDirectoryError, match="step 0 cannot be committed after step 0"):
        commit_one(run, 0)
    with pytest.raises(RunDirectoryError, match="step 2 cannot be committed after step 0"):
        commit_one(run, 2)


def test_nothing_is_committed_before_the_start(tmp_path: Path) -> None:
    run = open_run(tmp_path, small_config(), "demo")
    assert read_latest(run) is None
    with pytest.raises(RunDirectoryError, match="after nothing"):
        commit_one(run, 0)


def test_metrics_are_derived_from_manifests_and_evaluations(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    commit_one(run, 0, reward=0.25)
    commit_one(run, 1, reward=0.5)
    write_evaluation(run, 0, "greedy", 0.1)
    write_evaluation(run, 2, "greedy", 0.6)
    write_evaluation(run, 2, "sampled", 0.4)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [-1, 0, 1]
    assert [row.get("eval/exact_match") for row in rows] == [0.1, None, 0.6]
    assert rows[2]["eval_sampled/exact_match"] == 0.4
    assert rows[2]["reward"] == 0.5
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(whole[:-20])
    write_metrics(run)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole


def test_checkpoint_summary_says_where_the_run_stands(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    commit_one(run, 0, reward=0.25)
    run.checkpoint_path(1).mkdir(parents=True)
    write_checkpoint_summary(run)
    told = json.loads((tmp_path / "checkpoint.json").read_text())
    assert (told["step"], told["policy_version"], told["checkpoint"]) == (0, 1, "checkpoints/000001")
    assert told["metrics"] == {"reward": 0.25}


def test_events_survive_a_torn_line(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    run.events.record("call_retried", step=0, error="lost")
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"event": "call_ret')
    assert [event["error"] for event in run.events.read()] == ["lost"]
    assert run.events.count("call_retried") == 1


def test_a_run_begun_again_is_another_run_to_caches(tmp_path: Path) -> None:
    assert start_run(tmp_path / "a").key != start_run(tmp_path / "b").key


def test_a_copy_of_a_run_is_another_run_to_caches_and_a_moved_one_is_not(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a")
    shutil.copytree(run.root, tmp_path / "b")
    assert load_run(tmp_path / "b").cache_key != run.cache_key
    before = run.cache_key
    assert load_run((tmp_path / "a").rename(tmp_path / "c")).cache_key == before


def test_checkpoints_are_found_and_pruned(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    for version in (2, 4, 6):
        run.checkpoint_path(version).mkdir(parents=True)
    (tmp_path / "checkpoints" / ".000008.partial").mkdir()
    assert [newest_checkpoint(run, version) for version in (1, 2, 5, 9)] == [None, 2, 4, 6]
    prune_checkpoints(run, verified=6)
    assert [newest_checkpoint(run, version) for version in (3, 9)] == [None, 6]


def test_published_objects_read_alike_from_store_and_folder(tmp_path: Path) -> None:
    store, folder = MemoryObjects(), FolderObjects(tmp_path)
    mirrored = MirroredObjects(store, folder)
    handle = mirrored.put("app/session", b"anchor")
    assert [mirrored.append(handle, b"one"), mirrored.append(handle, b"two")] == [2, 3]
    for after in (0, 1, 2, 3):
        assert folder.read(handle, after) == store.read(handle, after)
    assert bytes(folder.get(handle)) == b"anchor"
    mirrored.delete("app/session")
    assert folder.read(handle).version == 3
    with pytest.raises(ObjectMissingError, match="no such published object"):
        folder.read(ObjectHandle("app/session/other", 1, ""))
