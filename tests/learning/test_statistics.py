"""Metrics of a step's trajectories mean what their names say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seeker.statistics import rollout_metrics
from seeker.types import Author, Search, Span, StopReason, Trajectory
from tests.learning.builders import make_trajectory

SYSTEM, USER, POLICY, ENVIRONMENT = Author


def tokens(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def spans(*sizes: tuple[Author, int]) -> tuple[Span, ...]:
    return tuple(
        Span(author, tokens(count), np.zeros(count, np.float32), 0)
        if author is Author.POLICY
        else Span(author, tokens(count))
        for author, count in sizes
    )


def two_trajectories() -> list[Trajectory]:
    good = make_trajectory(
        spans=spans(
            (Author.SYSTEM, 3), (Author.USER, 4), (Author.POLICY, 6), (Author.ENVIRONMENT, 10), (Author.POLICY, 4)
        ),
        num_turns=2,
        searches=(Search("Ama", ("d1",)),),
        reward=1.2,
        reward_terms={"exact_match": 1.0, "format": 1.0},
    )
    bad = replace(
        good,
        index=1,
        spans=spans((USER, 7), (POLICY, 5)),
        num_turns=4,
        num_malformed=3,
        num_forged_observations=2,
        searches=(),
        stop_reason=StopReason.TURN_TOKENS,
        reward=0.0,
        reward_terms={"exact_match": 0.0, "format": 0.0},
    )
    return [good, bad]


def test_every_metric() -> None:
    found = rollout_metrics(two_trajectories())
    expected = {
        "reward/mean": 0.6,
        "reward/exact_match": 0.5,
        "reward/format": 0.5,
        "format/valid_share": 0.5,
        "format/valid_turn_share": 0.5,
        "format/forged_share": 0.5,
        "search_r1/turns_per_sample": 3.0,
        "search_r1/search_calls_per_sample": 0.5,
        "loss_mask/observation_fraction": 10 / 25,
        "tokens/policy": 15.0,
        "tokens/observation": 10.0,
        "tokens/total": 39.0,
        "tokens/policy_per_sample": 7.5,
        "stop/answered": 0.5,
        "stop/turn_tokens": 0.5,
    }
    others = {f"stop/{reason.value}": 0.0 for reason in StopReason}
    assert found == pytest.approx({**others, **expected})


def test_custom_terms_appear_and_nothing_is_nothing() -> None:
    found = rollout_metrics([replace(make_trajectory(), reward_terms={"brevity": 0.25})])
    assert found["reward/brevity"] == 0.25
    assert rollout_metrics([]) == {}
