"""Going back to an earlier step of a run, with other settings or the same.

1. A fork keeps the first steps and goes on from there as a new lineage; what came after is kept, byte for byte.
2. `run.json` tells each lineage: from which version, when, why, and what was changed.
3. With other settings of the update, the full state of that version itself must be there; a refusal lists those that
   are and says how more are kept. A lost trainer is restored from it and never from before it: those batches were
   trained on under other settings.
4. With other rollout settings nothing of the old lineage's next step is reused.
5. What cannot be rebuilt, is not committed, or would change the starting policy is refused and changes nothing.
6. Killed at any operation of a fork: the run is as before, or the fork is carried out by the next writer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.runs import fork_run, load_run, restore_points
from seeker.runs.disk import use_disk
from tests.runs.faults import Killed, ScriptedDisk
from tests.runs.scripted_run import Trainer, final_policy, outcome, play, play_until, scripted_config

STEPS = 5


def config(rate: float = 1e-6, group_size: int = 8, steps: int = STEPS, keep: int = 9) -> RunConfig:
    return scripted_config(
        steps=steps,
        optimizer={"learning_rate": rate},
        rollout={"group_size": group_size},
        checkpoint={"every": 2, "keep": keep, "batches": "rebuild"},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    play(root, config())
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_fork_goes_on_from_its_step_and_keeps_what_came_after(root: Path, whole: Path) -> None:
    before = outcome(root)
    run = fork_run(root, 3, config())
    assert (run.lineage, run.floor, run.key) == (1, 0, load_run(whole).key)
    later = [
        "steps/000003/manifest.json",
        "steps/000004/batch.bin",
        "checkpoints/000004/state.safetensors",
        "policy/000004.json",
        "evaluations/000005-heldout-greedy.json",
    ]
    for name in later:
        assert not (root / name).exists()
        assert (root / "lineages" / "000" / name).read_bytes() == before[name]
    play(root, config())
    assert final_policy(root) == final_policy(whole)
    after = outcome(root)
    assert all(name in after or f"lineages/000/{name}" in after for name in before)


def test_the_history_is_told(root: Path) -> None:
    fork_run(root, 4, config(group_size=4))
    play(root, config(group_size=4))
    fork_run(root, 2, config(rate=2e-6, group_size=4))
    told = json.loads((root / "run.json").read_text())
    assert [(each["lineage"], each["from_version"], each["reason"]) for each in told["lineages"]] == [
        (1, 4, "fork"),
        (2, 2, "fork"),
    ]
    assert told["lineages"][0]["changed"] == ["rollout.group_size: 8 -> 4"]
    assert told["lineages"][0]["steps_left"] == [4]
    assert told["lineages"][1]["changed"] == ["optimizer.learning_rate: 1e-06 -> 2e-06"]
    assert (told["lineage"], told["floor"]) == (2, 2)
    assert "pending" not in told
    assert (root / "lineages/000/steps/000004").is_dir()
    assert (root / "lineages/001/steps/000004").is_dir()


def test_other_update_settings_need_the_full_state_itself(root: Path, whole: Path) -> None:
    with pytest.raises(RunDirectoryError, match="there are those of 0, 2, 4, 5: fork from one of these") as told:
        fork_run(root, 3, config(rate=2e-6))
    assert "keeps each that it writes with --set checkpoint.keep_every=2 (now off)" in str(told.value)
    run = fork_run(root, 2, config(rate=2e-6))
    assert restore_points(run, 2) == [2]
    for step in (0, 1):
        shutil.rmtree(root / run.step_path(step))
    expected = Trainer(load_run(whole))
    expected.reach(2)
    state = expected.state
    restored = Trainer(load_run(root))
    restored.reach(2)
    assert restored.state == state


def test_a_damaged_state_is_no_place_to_fork_from_with_other_update_settings(root: Path) -> None:
    path = root / "checkpoints/000004/state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = outcome(root)
    with pytest.raises(RunDirectoryError, match="checkpoints/000004: damaged; fork from another step"):
        fork_run(root, 4, config(rate=2e-6))
    assert outcome(root) == before
    assert fork_run(root, 2, config(rate=2e-6)).floor == 2


def test_a_lost_trainer_is_never_restored_from_before_the_fork(root: Path, whole: Path, tmp_path: Path) -> None:
    for name in ("straight", "interrupted"):
        shutil.copytree(root, tmp_path / name)
        fork_run(tmp_path / name, 2, config(rate=2e-6, keep=1))
    play(tmp_path / "straight", config(rate=2e-6, keep=1))
    play_until(tmp_path / "interrupted", config(rate=2e-6, keep=1), 0)
    assert (tmp_path / "interrupted/checkpoints/000002").is_dir()
    play(tmp_path / "interrupted", config(rate=2e-6, keep=1))
    assert final_policy(tmp_path / "interrupted") == final_policy(tmp_path / "straight") != final_policy(whole)
    run = load_run(tmp_path / "straight")
    assert restore_points(run, STEPS) == [5, 2]  # the lineage's start is always kept


def test_states_from_before_the_fork_do_not_count(root: Path) -> None:
    assert restore_points(load_run(root), 4) == [4, 2, 0]
    assert restore_points(fork_run(root, 4, config(rate=2e-6)), 4) == [4]
    assert (root / "checkpoints/000002").is_dir()


def test_nothing_of_the_old_next_step_is_reused(tmp_path: Path) -> None:
    root = tmp_path / "forked"
    play_until(root, config(), 3)
    (root / "steps/000003/rollouts").mkdir(parents=True)
    (root / "steps/000003/rollouts/call-000.json").write_text("{}")
    fork_run(root, 3, config(group_size=4))
    assert not (root / "steps/000003").exists()
    play(root, config(group_size=4))
    assert b"with 4" in (root / "steps/000003/rollouts/call-000.parquet").read_bytes()


@pytest.mark.parametrize(
    ("version", "changes", "message"),
    [
        (6, {}, "cannot fork after 6 steps: 5 are committed"),
        (3, {"steps": 2}, "the fork alone has 3"),
        (3, {"policy": {"path": "elsewhere"}}, "another starting policy needs --fork 0, or a new run"),
    ],
)
def test_what_cannot_be_is_refused(version: int, changes: dict[str, object], message: str, root: Path) -> None:
    before = outcome(root)
    changed = RunConfig.model_validate({**config().model_dump(), **changes})
    with pytest.raises(RunDirectoryError, match=message):
        fork_run(root, version, changed)
    assert outcome(root) == before


def test_what_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    play(tmp_path, config(keep=1))
    with pytest.raises(
        RunDirectoryError, match=r"version 3 cannot be rebuilt: steps/000000/batch\.bin: the file is miss"
    ):
        fork_run(tmp_path, 3, config(keep=1))


def test_another_starting_policy_starts_from_nothing(root: Path) -> None:
    changed = RunConfig.model_validate({**config().model_dump(), "policy": {"path": "elsewhere"}})
    fork_run(root, 0, changed)
    assert not (root / "LATEST").exists()
    assert (root / "lineages/000/LATEST").is_file()
    assert (root / "lineages/000/policy/000000.json").is_file()
    play(root, changed)
    assert load_run(root).lineage == 1


def test_killed_at_any_operation_of_a_fork(whole: Path, tmp_path: Path) -> None:
    def forked(disk: ScriptedDisk) -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        root = Path(shutil.copytree(whole, tmp_path / "run"))
        with use_disk(disk):
            fork_run(root, 2, config(rate=2e-6))
        return root

    straight = forked(disk := ScriptedDisk())
    play(straight, config(rate=2e-6))
    expected = final_policy(straight)
    for at, operation in enumerate(disk.operations):
        with pytest.raises(Killed):
            forked(ScriptedDisk(at, ("before", "torn", "power")[at % 3]))
        root = tmp_path / "run"
        changed = load_run(root).lineage == 1
        with use_disk(ScriptedDisk()):
            play(root, config(rate=2e-6) if changed else config())
        assert final_policy(root) == (expected if changed else final_policy(whole)), f"{at}: {operation}"
