"""What an evaluation says: scores with their interval, by kind, and how the trajectories ended. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from seeker.types import Question, Trajectory

Z_95 = 1.959963984540054


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson's score interval). Example: ``wilson_interval(100, 200) == (0.431, 0.569)``."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    spread = 1 + Z_95**2 / trials
    centre = (share + Z_95**2 / (2 * trials)) / spread
    half = Z_95 / spread * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def summarize(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Scores of one trajectory a question, in the same order.

    Example: ``{"n": 200, "exact_match": 0.61, "exact_match_interval": [0.54, 0.67], "f1": 0.66, "searches": 1.9,
    "kinds": {"birthplace": {"n": 40, "exact_match": 0.7, ...}}, "stop_reasons": {"answered": 196, ...}}``.
    """
    kinds: dict[str, list[Trajectory]] = {}
    for question, trajectory in zip(questions, trajectories, strict=True):
        kinds.setdefault(question.kind or "question", []).append(trajectory)
    return {
        **_scores(trajectories),
        "kinds": {kind: _scores(kinds[kind]) for kind in sorted(kinds)},
        "stop_reasons": dict(sorted(Counter(str(trajectory.stop_reason) for trajectory in trajectories).items())),
    }


def _scores(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    n = len(trajectories)
    low, high = wilson_interval(sum(trajectory.reward_terms["exact_match"] for trajectory in trajectories), n)
    terms = {
        name: _mean([trajectory.reward_terms[name] for trajectory in trajectories])
        for name in ("exact_match", "f1", "containment", "format")
    }
    return {
        "n": n,
        **terms,
        "exact_match_interval": [low, high],
        "searches": _mean([len(trajectory.searches) for trajectory in trajectories]),
        "turns": _mean([trajectory.num_turns for trajectory in trajectories]),
        "policy_tokens": _mean([_policy_tokens(trajectory) for trajectory in trajectories]),
    }


def _policy_tokens(trajectory: Trajectory) -> int:
    return sum(len(span.token_ids) for span in trajectory.spans if span.policy_version is not None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
