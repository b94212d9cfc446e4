"""What reinforcement does to the starting policy, in one process. Drills: minutes, not seconds.

Pinned behaviour:
1. Exact match on held-out questions rises by 30 points or more within 16 steps, and with it the searches of two-hop
   kinds.
2. With rewards shuffled within the batch nothing is learned: at most 5 points better.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from data.kinds import TWO_HOP_KINDS
from seeker.presets import load_config
from tests.world.loop import Score, run

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
SETTINGS = ["questions.world_seed=502", "steps=16", "evaluation.every=0"]


def trained(folder: Path, *settings: str) -> tuple[Score, ...]:
    return run(load_config("laptop", [*SETTINGS, *settings]), folder, num_questions=300)


def two_hop_searches(score: Score) -> float:
    return sum(score.by_kind[kind][1] for kind in TWO_HOP_KINDS) / len(TWO_HOP_KINDS)


def test_reinforcement_teaches_the_second_hop(tmp_path: Path) -> None:
    before, _, after, _ = trained(tmp_path)
    assert 0.10 <= before.exact_match <= 0.25
    assert after.exact_match >= before.exact_match + 0.30
    assert two_hop_searches(after) >= two_hop_searches(before) + 0.5


def test_shuffled_rewards_teach_nothing(tmp_path: Path) -> None:
    before, _, after, _ = trained(tmp_path, "reward.shuffle=true")
    assert after.exact_match <= before.exact_match + 0.05
