"""Rewards.

1.  Answers are compared after normalising case, punctuation, articles and whitespace; a form that stripping would
    leave empty is kept ("The The", "A", "!!!").
2.  F1 counts shared words; yes and no get no partial credit.
3.  Containment needs whole words, and an article-only answer does not match everything.
4.  No answer scores 0 in every term of the answer.
5.  The format term needs an answer, no malformed turn and no forged observation.
6.  The reward is the weighted sum of the terms; every term is recorded whatever its weight.
7.  A custom reward sees the question and the whole group; one that cannot be imported is an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.config import RewardConfig
from seeker.errors import ConfigError
from seeker.rewards import containment, exact_match, f1, load_reward, normalize_answer, score_group
from seeker.types import Question, StopReason, Trajectory
from tests.learning.builders import QUESTION, make_trajectory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Tower,  of Velm! ", "tower of velm"),
        ("“Ama” – a film", "ama film"),
        ("U.S.A.", "usa"),
        ("The The", "the the"),
        ("A", "a"),
        ("An a", "an a"),
        ("!!!", "!!!"),
        ("Theatre", "theatre"),
        ("Ångström", "ångström"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_normalizing(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@given(st.text())
def test_normalizing_twice_changes_nothing_and_only_blank_becomes_empty(text: str) -> None:
    once = normalize_answer(text)
    assert normalize_answer(once) == once
    assert (once == "") == (text.split() == [])


def test_exact_match_takes_any_answer() -> None:
    assert exact_match("the velm.", ["Oru", "Velm"]) == 1.0
    assert exact_match("Velm in Oru", ["Oru", "Velm"]) == 0.0
    assert exact_match("the the", ["The The"]) == 1.0
    assert exact_match("", ["The The"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("tower of Velm", "Velm tower", 0.8),
        ("Velm Velm", "Velm", 2 / 3),
        ("yes it is", "yes", 0.0),
        ("yes", "Yes.", 1.0),
        ("no", "yes", 0.0),
        ("Oru", "Velm", 0.0),
        ("The The band", "The The", 0.8),
        ("a band", "The The", 0.0),
    ],
)
def test_f1(prediction: str, answer: str, expected: float) -> None:
    assert f1(prediction, [answer]) == pytest.approx(expected)
    assert f1(prediction, ["nothing at all", answer]) == pytest.approx(expected)


def test_containment() -> None:
    assert containment("it was Velm, in Oru", ["velm"]) == 1.0
    assert containment("Velmish", ["Velm"]) == 0.0
    assert containment("the band of Oru", ["The The"]) == 0.0
    assert containment("by The The, I think", ["The The"]) == 1.0
    assert containment("", ["A"]) == 0.0


def test_no_answer_scores_nothing() -> None:
    silent = make_trajectory(answer=None, stop_reason=StopReason.SEARCHES_SPENT)
    scored = score_group(QUESTION, [silent], RewardConfig(format_score=0.2, f1=1.0, containment=1.0))[0]
    assert scored.reward_terms == {"exact_match": 0.0, "format": 0.0, "f1": 0.0, "containment": 0.0}
    assert scored.reward == 0.0


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, 1.0),
        ({"num_malformed": 1}, 0.0),
        ({"num_forged_observations": 1}, 0.0),
        ({"stop_reason": StopReason.TRAJECTORY_TOKENS}, 0.0),
    ],
)
def test_format_term(changes: dict[str, object], valid: float) -> None:
    wrong = replace(make_trajectory(answer="Oru"), **changes)
    scored = score_group(QUESTION, [wrong], RewardConfig(format_score=0.2))[0]
    assert scored.reward_terms["format"] == valid
    assert scored.reward == pytest.approx(0.2 * valid)


def test_reward_is_the_weighted_sum_and_keeps_order() -> None:
    group = [make_trajectory(index=index, answer=answer) for index, answer in enumerate(["Velm", "in Velm", "Oru"])]
    scored = score_group(QUESTION, group, RewardConfig(exact_match=1.0, f1=0.5, containment=0.25))
    assert [trajectory.index for trajectory in scored] == [0, 1, 2]
    assert [trajectory.reward for trajectory in scored] == pytest.approx([1.75, 0.5 * 2 / 3 + 0.25, 0.0])


def shortest_right_answer(
    question: Question, trajectories: Sequence[Trajectory], config: RewardConfig
) -> list[Trajectory]:
    """A custom reward that needs the whole group: only the shortest right trajectory is paid."""
    right = [trajectory for trajectory in trajectories if exact_match(trajectory.answer or "", question.answers)]
    best = min(right, key=lambda trajectory: trajectory.num_turns, default=None)
    return [replace(trajectory, reward=float(trajectory is best)) for trajectory in trajectories]


def test_a_custom_reward_sees_the_group() -> None:
    reward = load_reward(RewardConfig(function=f"{__name__}:shortest_right_answer"))
    group = [make_trajectory(index=index, num_turns=turns) for index, turns in enumerate([3, 2, 4])]
    assert [scored.reward for scored in reward(QUESTION, group, RewardConfig())] == [0.0, 1.0, 0.0]
    assert load_reward(RewardConfig()) is score_group


@pytest.mark.parametrize("name", ["seeker.rewards:nothing", "no.such.module:x", "seeker.rewards", ":"])
def test_a_custom_reward_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.function"):
        load_reward(RewardConfig(function=name))
