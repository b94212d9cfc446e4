"""What a step's trajectories say, in numbers. Pure; every metric means what its name says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seeker.rewards import has_valid_form
from seeker.types import Author, StopReason, Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of one step's trajectories, before any group is left out.

    `loss_mask/observation_fraction` is the share of observation tokens among all tokens after the prompt: what the
    loss mask takes out of the trajectory. Shares are of trajectories, except `format/valid_turn_share`.
    """
    if not trajectories:
        return {}
    policy = [num_tokens(trajectory, Author.POLICY) for trajectory in trajectories]
    observations = [num_tokens(trajectory, Author.ENVIRONMENT) for trajectory in trajectories]
    turns = [trajectory.num_turns for trajectory in trajectories]
    malformed = sum(trajectory.num_malformed for trajectory in trajectories)
    return {
        **_reward_metrics(trajectories),
        "format/valid_share": mean(has_valid_form(trajectory) for trajectory in trajectories),
        "format/valid_turn_share": 1.0 - malformed / max(sum(turns), 1),
        "format/forged_share": mean(trajectory.num_forged_observations > 0 for trajectory in trajectories),
        "search_r1/turns_per_sample": mean(turns),
        "search_r1/search_calls_per_sample": mean(len(trajectory.searches) for trajectory in trajectories),
        "loss_mask/observation_fraction": sum(observations) / max(sum(policy) + sum(observations), 1),
        "tokens/policy": float(sum(policy)),
        "tokens/observation": float(sum(observations)),
        "tokens/total": float(sum(len(span.token_ids) for trajectory in trajectories for span in trajectory.spans)),
        "tokens/policy_per_sample": mean(policy),
        **{
            f"stop/{reason.value}": mean(trajectory.stop_reason is reason for trajectory in trajectories)
            for reason in StopReason
        },
    }


def num_tokens(trajectory: Trajectory, author: Author) -> int:
    """Tokens that `author` wrote in this trajectory."""
    return sum(len(span.token_ids) for span in trajectory.spans if span.author is author)


def mean(values: Iterable[float]) -> float:
    """The mean in double precision; 0 of nothing."""
    array = np.fromiter((float(value) for value in values), np.float64)
    return float(array.mean()) if len(array) else 0.0


def _reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean of the reward and of each named term (a custom reward may name its own)."""
    names = sorted({name for trajectory in trajectories for name in trajectory.reward_terms})
    terms = {
        f"reward/{name}": mean(trajectory.reward_terms.get(name, 0.0) for trajectory in trajectories) for name in names
    }
    return {"reward/mean": mean(trajectory.reward for trajectory in trajectories), **terms}
