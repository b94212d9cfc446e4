"""Training runs whose processes are killed with -9 at random moments, resumed until they are done.

1. Whatever was killed, and however often: the metrics of every step, every evaluation, the batches and the final
   state, byte for byte, are those of the run that nobody disturbed. No step is missing or double, no process of a dead
   flow run lives on, no lock is stale, and `state.json` says what happened.
2. Executors and trainers are replaced while the flow goes on; for the rest it is started again with the run's name.
3. Killed twice in a row, and killed while it is being resumed: the same.
4. A run of the laptop preset, killed and resumed: the same (only in the long drill).

The preset `micro`. SEEKER_DRILL_KILLS is the number of random kills (10; 100 in `make drill`), SEEKER_DRILL_SEED the
seed of their plan. The moments are never the same twice.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from seeker.presets import load_config
from tests.deployments.served import ServedPrefect
from tests.drills.drilled import DrilledRun
from tests.drills.ends import check_order, differences, outcome
from tests.drills.plans import Strike, plan, targets
from tests.drills.tally import tally

KILLS = int(os.environ.get("SEEKER_DRILL_KILLS", "10"))
SEED = int(os.environ.get("SEEKER_DRILL_SEED", str(int(time.time()))))
KILLS_PER_RUN = 8.4
RUNS = max(2, round(KILLS / KILLS_PER_RUN))
STEPS = load_config("micro").steps
MICRO = {"preset": "micro"}
LAPTOP: dict[str, Any] = {"preset": "laptop", "steps": 6, "overrides": ["checkpoint.every=4", "evaluation.every=3"]}

pytestmark = [pytest.mark.drill, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def undisturbed(served: ServedPrefect, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    return drill(served, root, MICRO, [], STEPS)


def drill(
    served: ServedPrefect, root: Path, first: dict[str, Any], strikes: list[Strike], steps: int, seed: int = 0
) -> dict[str, Any]:
    """Play a run with these kills; what it came to."""
    run = DrilledRun(served, root, random.Random(seed), first)
    run.play(strikes)
    check_order(root, steps)
    return outcome(root)


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_at_random_moments(
    number: int, served: ServedPrefect, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    share = -(-(KILLS - tally.random) // (RUNS - number))  # what earlier runs did not get to is made up for
    draw = random.Random(f"{SEED}-{number}")
    strikes = plan(targets(tally.random, share, draw), STEPS, draw)
    print(f"seed {SEED}, run {number}: {strikes}")
    before = tally.kills.total()
    found = drill(served, tmp_path / "run", MICRO, strikes, STEPS, seed=SEED)
    tally.random += tally.kills.total() - before
    assert differences(found, undisturbed) == []


def test_killed_twice_in_a_row_and_while_being_resumed(
    served: ServedPrefect, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    strikes = [
        Strike("flow", 3, 0.4),
        Strike("flow", 0, 2.0),  # while the next one imports its modules
        Strike("cluster", 0, 1.0),  # while its executors load
        Strike("trainer", 0, 0.5),  # while it replays
        Strike("flow", 0, 0.0),
    ]
    found = drill(served, tmp_path / "run", MICRO, strikes, STEPS)
    assert differences(found, undisturbed) == []


@pytest.mark.skipif(KILLS <= 10, reason="some minutes: part of `make drill` (SEEKER_DRILL_KILLS above 10)")
def test_a_laptop_run(served: ServedPrefect, tmp_path: Path) -> None:
    expected = drill(served, tmp_path / "undisturbed", LAPTOP, [], 6)
    found = drill(served, tmp_path / "killed", LAPTOP, [Strike("flow", 5, 1.0)], 6)
    assert differences(found, expected) == []


def test_so_many_were_killed() -> None:
    assert tally.random >= 0.9 * KILLS, tally.lines()
