"""Which questions a step asks.

1. From (seed, step) alone: the same whatever was asked before, another order for another seed.
2. Within an epoch no question is asked twice, and never twice in one step.
3. Too few questions for one step are refused.
"""

from __future__ import annotations

import pytest

from seeker.errors import ConfigError
from seeker.types import Question
from tasks.rollouts import step_questions

QUESTIONS = [Question(f"q{number}", "Who?", ("Ama",)) for number in range(10)]


def ids(step: int, seed: int = 0, per_step: int = 3) -> list[str]:
    return [question.id for question in step_questions(QUESTIONS, per_step, step, seed)]


def test_from_seed_and_step_alone() -> None:
    assert ids(7) == ids(7)
    assert [ids(step) for step in range(3)] != [ids(step, seed=1) for step in range(3)]


def test_an_epoch_repeats_no_question() -> None:
    first, second = [[name for step in epoch for name in ids(step)] for epoch in (range(3), range(3, 6))]
    assert len(set(first)) == 9
    assert len(set(second)) == 9
    assert first != second


def test_too_few_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompts_per_step is 11, but there are 10"):
        ids(0, per_step=11)
