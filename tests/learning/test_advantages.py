"""Group-relative advantages.

1.  Reward minus the group's mean over its (population) standard deviation, in fp32, aligned with the trajectories.
2.  A group whose rewards are all equal is left out and counted; order of groups is that of first appearance.
3.  Ids and sizes are checked; the error names the group.
4.  Per group the advantages add up to 0 and are unchanged when all rewards are shifted or scaled.
5.  Shuffled rewards are the same rewards in another order, the same for the same seed; terms stay where they were.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.advantages import group_advantages, shuffle_rewards
from seeker.config import ObjectiveConfig
from seeker.errors import GroupError
from seeker.types import Trajectory
from tests.learning.builders import make_group, make_trajectory

CONFIG = ObjectiveConfig()


def test_values_and_dropped_groups() -> None:
    trajectories = [
        *make_group("b", [1, 0, 0, 0]),
        *make_group("a", [1, 1, 1, 1]),
        *make_group("c", [0, 1, 0, 1]),
    ]
    found = group_advantages(trajectories, CONFIG)
    assert [trajectory.question_id for trajectory in found.trajectories] == ["b"] * 4 + ["c"] * 4
    root = 3**0.5
    np.testing.assert_allclose(found.values, [root, -1 / root, -1 / root, -1 / root, -1, 1, -1, 1], rtol=1e-6)
    assert found.values.dtype == np.float32
    assert (found.num_groups_kept, found.num_groups_dropped) == (2, 1)


def test_nothing_to_learn_from() -> None:
    found = group_advantages(make_group("a", [0.3] * 4), CONFIG)
    assert found.trajectories == ()
    assert found.values.shape == (0,)
    assert (found.num_groups_kept, found.num_groups_dropped) == (0, 1)
    assert group_advantages([], CONFIG, 8).num_groups_dropped == 0


def test_siblings_may_arrive_in_any_order() -> None:
    group = make_group("a", [1, 0, 0])
    found = group_advantages([group[2], group[0], group[1]], CONFIG, 3)
    assert [trajectory.index for trajectory in found.trajectories] == [0, 1, 2]
    assert found.values[0] > 0


def wrong_groups() -> list[tuple[str, list[Trajectory], int | None]]:
    nan = make_group("a", [1.0, float("nan")])
    return [
        ("too few", make_group("a", [1, 0]), 3),
        ("too many", make_group("a", [1, 0, 0]), 2),
        ("unequal sizes", [*make_group("b", [1, 0, 0]), *make_group("a", [1, 0])], None),
        ("index twice", [make_trajectory("a", 0), make_trajectory("a", 0, reward=1.0)], None),
        ("two questions", [make_trajectory("a", 0), make_trajectory("b", 1, group_id="000000/a")], None),
        ("two groups", [*make_group("a", [1, 0]), *make_group("a", [1, 0], group_id="000000/a#2")], None),
        ("not finite", nan, None),
    ]


@pytest.mark.parametrize(("trajectories", "size"), [pytest.param(t, s, id=name) for name, t, s in wrong_groups()])
def test_groups_that_do_not_fit_are_named(trajectories: list[Trajectory], size: int | None) -> None:
    with pytest.raises(GroupError, match="000000/a"):
        group_advantages(trajectories, CONFIG, size)


rewards = st.lists(st.integers(-100, 100), min_size=2, max_size=12)


@given(rewards, st.integers(-50, 50), st.sampled_from([1, 2, 10]))
def test_shift_and_scale_change_nothing(values: list[int], shift: int, scale: int) -> None:
    plain = group_advantages(make_group("a", values), CONFIG)
    moved = group_advantages(make_group("a", [scale * value + shift for value in values]), CONFIG)
    np.testing.assert_allclose(plain.values, moved.values, rtol=1e-5, atol=1e-5)
    assert abs(float(plain.values.sum())) < 1e-4
    if len(set(values)) > 1:
        assert float(np.std(plain.values)) == pytest.approx(1.0, rel=1e-4)


@given(rewards, st.integers(0, 2**32 - 1))
def test_shuffling_permutes_rewards_only(values: list[int], seed: int) -> None:
    group = make_group("a", values)
    shuffled = shuffle_rewards(group, seed)
    assert sorted(trajectory.reward for trajectory in shuffled) == sorted(values)
    assert [trajectory.reward_terms for trajectory in shuffled] == [trajectory.reward_terms for trajectory in group]
    assert shuffled == shuffle_rewards(group, seed)


def test_shuffling_crosses_groups() -> None:
    trajectories = [*make_group("a", [1] * 8), *make_group("b", [0] * 8)]
    shuffled = shuffle_rewards(trajectories, [3, 1])
    assert 0 < sum(trajectory.reward for trajectory in shuffled[:8]) < 8
