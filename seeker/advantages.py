"""Group-relative advantages (GRPO, arXiv 2402.03300): how much better than its siblings a trajectory did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seeker.config import ObjectiveConfig
from seeker.errors import GroupError
from seeker.types import Trajectory


@dataclass(frozen=True, slots=True)
class Advantages:
    """The trajectories worth training on and their advantages.

    Example: two groups of 2, rewards (1, 0) and (1, 1): ``values == [1, -1]``, the first two trajectories,
    ``num_groups_kept == 1``, ``num_groups_dropped == 1``.
    """

    trajectories: tuple[Trajectory, ...]
    values: NDArray[np.float32]  # [B]
    num_groups_kept: int
    num_groups_dropped: int  # all rewards equal: nothing to learn from


def group_advantages(
    trajectories: Sequence[Trajectory], config: ObjectiveConfig, group_size: int | None = None
) -> Advantages:
    """Reward minus the group's mean over its standard deviation; groups whose rewards are all equal are left out.

    Raises `GroupError` naming the group when ids or sizes do not fit: every group needs the indices 0 .. G-1 of one
    question, and every question one group.
    """
    groups = group_trajectories(trajectories, group_size)
    kept: list[Trajectory] = []
    values: list[NDArray[np.float64]] = []
    for group in groups.values():
        rewards = np.array([trajectory.reward for trajectory in group], np.float64)  # [G]
        if np.ptp(rewards) <= config.std_floor:
            continue
        kept.extend(group)
        values.append((rewards - rewards.mean()) / max(float(rewards.std()), config.std_floor))
    return Advantages(
        trajectories=tuple(kept),
        values=np.concatenate(values).astype(np.float32) if values else np.zeros(0, np.float32),
        num_groups_kept=len(values),
        num_groups_dropped=len(groups) - len(values),
    )


def group_trajectories(
    trajectories: Sequence[Trajectory], group_size: int | None = None
) -> dict[str, list[Trajectory]]:
    """The trajectories by group id, checked, in order of first appearance and of index."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    group_of_question: dict[str, str] = {}
    for group_id, group in groups.items():
        group.sort(key=lambda trajectory: trajectory.index)
        group_size = len(group) if group_size is None else group_size
        _check_group(group_id, group, group_size)
        other = group_of_question.setdefault(group[0].question_id, group_id)
        if other != group_id:
            raise GroupError(f"question {group[0].question_id!r} is in two groups, {other!r} and {group_id!r}")
    return groups


def shuffle_rewards(trajectories: Sequence[Trajectory], seed: int | Sequence[int]) -> list[Trajectory]:
    """A control: the rewards permuted over the whole batch, so that nothing may be learned from them.

    `reward_terms` stay where they were: metrics keep telling the truth about the trajectories.
    """
    order = np.random.default_rng(seed).permutation(len(trajectories))
    return [
        replace(trajectory, reward=trajectories[int(source)].reward)
        for trajectory, source in zip(trajectories, order, strict=True)
    ]


def _check_group(group_id: str, group: Sequence[Trajectory], group_size: int) -> None:
    questions = sorted({trajectory.question_id for trajectory in group})
    if len(questions) > 1:
        raise GroupError(f"group {group_id!r} mixes the questions {', '.join(questions)}")
    indices = [trajectory.index for trajectory in group]
    if indices != list(range(group_size)):
        raise GroupError(
            f"group {group_id!r}: expected the trajectories 0 to {group_size - 1}, found {indices}; "
            "a group is trained whole or dropped whole"
        )
    for trajectory in group:
        if not np.isfinite(trajectory.reward):
            raise GroupError(f"group {group_id!r}, trajectory {trajectory.index}: reward is {trajectory.reward}")
