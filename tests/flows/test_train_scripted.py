"""The training flow on a scripted cluster whose services run in this process.

1. A run goes through: every step is committed with its files, metrics of every name, evaluations before and after.
2. A run started again is over at once; killed before a commit, it goes on and ends as an uninterrupted one: finished
   phases come from Prefect's results, finished calls from the step's folder.
   Of a committed step Prefect's results keep nothing.
   Files that were damaged since are made again, also where Prefect's results still name them.
3. A trainer that is lost between update and publish is rebuilt from checkpoint and batches: the same policy.
4. A rollout call that fails is done again; the step's metrics are those of a run without trouble.
5. A question whose search always fails costs its group only; more than half of a step lost is a clear error.
6. Two trainer ranks make the run of one but for rounding, and the same run again, also when the gang is lost on the
   way; a gang that is lost over and over ends the run at its last commit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import get_current_settings

from seeker.errors import CallError, ClusterError, GangLostError, InfrastructureError, LostStepError, RunDirectoryError
from seeker.questions import read_questions
from seeker.runs import load_run, published_manifest, read_evaluations, read_latest, read_manifest, read_metrics
from tasks.cluster import Session, start_rollouts
from tasks.rollouts import produce_rollouts
from tests.flows.fake_cluster import FakeCluster
from tests.flows.whole import copy_inputs, no_trouble, outcome, run_flow

pytestmark = pytest.mark.usefixtures("prefect_server")

NAMES = (
    "reward/exact_match",
    "reward/format",
    "format/valid_share",
    "search_r1/turns_per_sample",
    "search_r1/search_calls_per_sample",
    "loss_mask/observation_fraction",
    "tis/effective_sample_size",
    "groups/kept",
    "groups/dropped",
    "groups/void",
    "update/entropy",
    "update/grad_norm",
    "update/clipped_fraction",
    "staleness",
    "publish/bytes",
    "publish/changed_fraction",
    "tokens/generated",
    "rollout/sampler_busy_share",
    "seconds/rollout",
    "seconds/advantage",
    "seconds/update",
    "seconds/publish",
    "seconds/orchestration",
)


def test_a_run_commits_every_step_with_all_its_metrics(uninterrupted: Path) -> None:
    run = load_run(uninterrupted)
    latest = read_latest(run)
    assert latest is not None
    assert (latest.step, latest.policy_version) == (1, 2)
    rows = read_metrics(uninterrupted)
    assert [row["step"] for row in rows] == [-1, 0, 1]
    for row in rows[1:]:
        assert [name for name in NAMES if name not in row] == []
        assert all(name in row for name in ("eval/exact_match", "eval/f1", "eval/searches"))
    versions = [published_manifest(run, version)["digest"] for version in range(3)]
    assert len(set(versions)) == 3
    assert {(each["policy_version"], each["mode"]) for each in read_evaluations(run)} == {
        (0, "greedy"),
        (0, "sampled"),
        (1, "greedy"),
        (2, "greedy"),
        (2, "sampled"),
    }
    manifest = read_manifest(run, 1)
    for ref in [*manifest["rollouts"], manifest["batch"], manifest["policy"]]:
        assert (uninterrupted / ref["path"]).is_file()
    told = json.loads((uninterrupted / "run.json").read_text())
    assert set(told["digests"]) >= {"policy", "prompt", "corpus", "index", "code"}
    assert told["cluster"] == {"kind": "fake"}
    assert told["template"].startswith("plain prompt")


def test_a_finished_run_started_again_does_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    copy_inputs(uninterrupted.parent, tmp_path)
    root, _ = run_flow(tmp_path)
    before = outcome(root)
    _, cluster = run_flow(tmp_path)
    assert [method for method, _, _ in cluster.services["rollout-tiny"].calls] == ["describe"]
    assert outcome(root) == before
    with pytest.raises(RunDirectoryError, match="seed: 0 -> 5"):
        run_flow(tmp_path, seed=5)


def test_no_results_are_kept_of_committed_steps(uninterrupted: Path) -> None:
    storage = get_current_settings().results.local_storage_path
    assert storage.is_dir()
    assert list((storage / "seeker" / load_run(uninterrupted).cache_key).rglob("*.json")) == []


def die_before_the_second_commit(uninterrupted: Path, folder: Path) -> None:
    """A run of the same inputs that ends with its second step's batch made and trained on, but not published."""

    def die(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "publish" and args[0] == 2:
            raise KeyError("the process is gone")

    copy_inputs(uninterrupted.parent, folder)
    with pytest.raises(CallError, match="gone"):
        run_flow(folder, die)


def test_a_run_that_dies_before_a_commit_goes_on_from_the_last_one(uninterrupted: Path, tmp_path: Path) -> None:
    die_before_the_second_commit(uninterrupted, tmp_path)
    latest = read_latest(load_run(tmp_path / "run"))
    assert latest is not None
    assert latest.step == 0
    root, cluster = run_flow(tmp_path)
    assert [kwargs for _, _, kwargs in cluster.services["rollout-tiny"].calls if kwargs.get("group_size", 1) > 1] == []
    assert [method for method, _, _ in cluster.services["trainer-tiny"].calls].count("update") == 0
    assert outcome(root) == outcome(uninterrupted)


@pytest.mark.parametrize(
    "name",
    [
        "batch.bin",
        pytest.param("rollouts/call-001.parquet", marks=pytest.mark.drill),
        pytest.param("rollouts/call-001.json", marks=pytest.mark.drill),
    ],
)
def test_files_of_the_step_under_way_that_were_damaged_are_made_again(
    name: str, uninterrupted: Path, tmp_path: Path
) -> None:
    die_before_the_second_commit(uninterrupted, tmp_path)
    for path in (tmp_path / "run/steps/000001" / name, tmp_path / "run/steps/000001/rollouts/call-000.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    root, _ = run_flow(tmp_path)
    assert load_run(root).events.count("phase_redone") >= 1
    assert outcome(root) == outcome(uninterrupted)


def test_finished_calls_are_taken_from_the_steps_folder_and_damaged_ones_done_again(
    uninterrupted: Path, tmp_path: Path
) -> None:
    copy_inputs(uninterrupted.parent, tmp_path)
    root = tmp_path / "run"
    shutil.copytree(uninterrupted, root)
    damaged = root / "steps" / "000000" / "rollouts" / "call-001.parquet"
    before = damaged.read_bytes()
    damaged.write_bytes(before[:-1])
    session = open_session(root)
    told = produce_rollouts(session, 0)
    assert len(session.rollouts.calls) == 1  # type: ignore[attr-defined]
    assert load_run(root).events.count("call_reused") == 1
    assert told["calls"] == read_manifest(load_run(root), 0)["rollouts"]
    assert damaged.read_bytes() == before


def open_session(root: Path) -> Session:
    """A session on the run at `root` whose rollout executors hold the starting policy."""
    run = load_run(root)
    prepared = run.describe()["prepared"]
    cluster: Any = FakeCluster()
    rollouts = start_rollouts(cluster, run.config, Path(prepared["index"]), "rollout")
    questions = [read_questions(prepared[name]) for name in ("train", "heldout")]
    return Session(run, cluster, rollouts, rollouts, *questions)


class LosesTrainers:
    """Loses the gang once in each of the named methods, whenever a version after the first is concerned."""

    def __init__(self, *methods: str) -> None:
        self._methods = methods
        self.lost: list[tuple[str, int]] = []

    def __call__(self, method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method in self._methods and args[0] > 0 and (method, args[0]) not in self.lost:
            self.lost.append((method, args[0]))
            raise GangLostError("rank 0 was lost", 0, "executor-0")


@pytest.mark.drill
def test_a_trainer_lost_between_update_and_publish_is_rebuilt(uninterrupted: Path, tmp_path: Path) -> None:
    copy_inputs(uninterrupted.parent, tmp_path)
    script = LosesTrainers("publish", "checkpoint")
    root, cluster = run_flow(tmp_path, script, checkpoint={"every": 2})
    assert script.lost == [("publish", 1), ("publish", 2), ("checkpoint", 2)]
    assert cluster.services["trainer-tiny"].formed == 4
    assert load_run(root).events.count("trainers_lost") == 3
    assert outcome(root) == outcome(uninterrupted)


@pytest.mark.drill
def test_two_ranks_make_the_run_of_one_and_the_same_one_again(uninterrupted: Path, tmp_path: Path) -> None:
    scripts = [no_trouble, LosesTrainers("update", "publish")]
    roots: list[Path] = []
    for number, script in enumerate(scripts):
        folder = tmp_path / str(number)
        folder.mkdir()
        copy_inputs(uninterrupted.parent, folder)
        roots.append(run_flow(folder, script, cluster={"trainers": 2}, checkpoint={"every": 2})[0])
    assert load_run(roots[1]).events.count("trainers_lost") == 3
    assert outcome(roots[0]) == outcome(roots[1])
    row, expected = (read_metrics(root)[1] for root in (roots[0], uninterrupted))
    assert row["seconds/update_waiting"] >= 0.0
    for name in ("update/loss", "update/grad_norm", "update/entropy", "mismatch/max", "tis/effective_sample_size"):
        assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5)


@pytest.mark.drill
def test_a_gang_that_is_lost_over_and_over_ends_the_run_at_its_last_commit(uninterrupted: Path, tmp_path: Path) -> None:
    def lose(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "update" and args[0] == 1:
            raise GangLostError("rank 0 was lost", 0, "executor-0")

    copy_inputs(uninterrupted.parent, tmp_path)
    with pytest.raises(LostStepError, match=r"lost 3 times in 'update', the last time: rank 0 was lost.*last commit"):
        run_flow(tmp_path, lose)
    events = [event for event in load_run(tmp_path / "run").events.read() if event["event"] == "trainers_lost"]
    assert [(event["method"], event["attempt"], event["rank"]) for event in events] == [
        ("update", 1, 0),
        ("update", 2, 0),
        ("update", 3, 0),
    ]
    root, _ = run_flow(tmp_path)
    assert outcome(root) == outcome(uninterrupted)


def test_a_failed_call_is_done_again_and_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    def fail_twice(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "rollout" and number in (3, 4):
            raise ClusterError("executor lost")

    copy_inputs(uninterrupted.parent, tmp_path)
    root, _ = run_flow(tmp_path, fail_twice)
    assert load_run(root).events.count("call_retried") == 2
    assert outcome(root) == outcome(uninterrupted)


def test_a_question_that_always_fails_costs_its_group_only(tmp_path: Path) -> None:
    poisoned: list[str] = []

    def poison(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method != "rollout" or kwargs["group_size"] == 1:
            return
        ids = [question["id"] for question in args[0]]
        if not poisoned:
            poisoned.append(ids[0])
        if poisoned[0] in ids:
            raise CallError("search failed", "RetrievalError")

    root, _ = run_flow(tmp_path, poison, steps=1)
    row = read_metrics(root)[1]
    assert (row["groups/void"], row["groups/kept"] + row["groups/dropped"]) == (1, 3)
    assert load_run(root).events.count("group_void") == 1


def test_a_step_that_is_mostly_lost_is_an_error_and_can_be_gone_on_with(tmp_path: Path) -> None:
    def break_down(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "rollout" and kwargs["group_size"] > 1:
            raise CallError("no index", "RetrievalError")

    with pytest.raises(InfrastructureError, match="4 of 4 groups were lost"):
        run_flow(tmp_path, break_down, steps=1)
    root, _ = run_flow(tmp_path, steps=1)
    latest = read_latest(load_run(root))
    assert latest is not None
    assert latest.step == 0
