"""Rewards: named terms per trajectory, and their weighted sum.

Only what the policy wrote is scored: `Trajectory.answer` comes from its own last span, and forged observations are
known from the spans' authors.
"""

from __future__ import annotations

import importlib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from seeker.config import RewardConfig
from seeker.errors import ConfigError
from seeker.types import Question, StopReason, Trajectory

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})  # no partial credit between these (HotpotQA's evaluation)


class GroupReward(Protocol):
    """The seam for a custom reward: sees the question and all trajectories of its group at once.

    Returns the same trajectories in the same order with `reward` and `reward_terms` set.
    """

    def __call__(
        self, question: Question, trajectories: Sequence[Trajectory], config: RewardConfig
    ) -> list[Trajectory]: ...


def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces.

    A form that stripping would leave empty is kept unstripped: ``"The Tower!" -> "tower"``, ``"The The" -> "the the"``,
    ``"!!!" -> "!!!"``.
    """
    unstripped = _strip_punctuation(text)
    return _join(_ARTICLES.sub(" ", unstripped)) or unstripped


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 when the prediction equals one of the answers after normalising."""
    normalized = normalize_answer(prediction)
    return float(any(normalized == normalize_answer(answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Best token F1 over the answers: ``f1("tower of Velm", ["Velm tower"]) == 0.8``."""
    return max((_f1(*_comparable(prediction, answer)) for answer in answers), default=0.0)


def containment(prediction: str, answers: Sequence[str]) -> float:
    """1 when the words of one of the answers stand in the prediction, whole and in order."""
    pairs = [_comparable(prediction, answer) for answer in answers]
    return float(any(f" {answer} " in f" {predicted} " for predicted, answer in pairs))


def has_valid_form(trajectory: Trajectory) -> bool:
    """Answered, with no malformed turn and no observation that the policy forged."""
    return (
        trajectory.stop_reason is StopReason.ANSWERED
        and trajectory.num_malformed == 0
        and trajectory.num_forged_observations == 0
    )


def reward_terms(question: Question, trajectory: Trajectory) -> dict[str, float]:
    """Every named term of one trajectory, whatever its weight."""
    answer = trajectory.answer or ""  # no answer scores as the empty string, which matches no gold answer
    return {
        "exact_match": exact_match(answer, question.answers),
        "format": float(has_valid_form(trajectory)),
        "f1": f1(answer, question.answers),
        "containment": containment(answer, question.answers),
    }


def score_group(question: Question, trajectories: Sequence[Trajectory], config: RewardConfig) -> list[Trajectory]:
    """The group's trajectories with their terms and the weighted sum of them as reward."""
    weights = {
        "exact_match": config.exact_match,
        "format": config.format_score,
        "f1": config.f1,
        "containment": config.containment,
    }
    scored: list[Trajectory] = []
    for trajectory in trajectories:
        terms = reward_terms(question, trajectory)
        total = sum(weights[name] * value for name, value in terms.items())
        scored.append(replace(trajectory, reward=total, reward_terms=terms))
    return scored


def load_reward(config: RewardConfig) -> GroupReward:
    """The reward that `reward.function` names (``"module:function"``); `score_group` when it names none."""
    if config.function is None:
        return score_group
    module_name, _, name = config.function.partition(":")
    try:
        return cast(GroupReward, getattr(importlib.import_module(module_name), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"reward.function: expected 'module:function' that can be imported, found {config.function!r} ({error})"
        ) from error


def _comparable(prediction: str, answer: str) -> tuple[str, str]:
    """Prediction and answer normalised alike: an article-only answer is compared with articles kept on both sides."""
    stripped = _join(_ARTICLES.sub(" ", _strip_punctuation(answer)))
    if stripped:
        return normalize_answer(prediction), stripped
    return _strip_punctuation(prediction), _strip_punctuation(answer)


def _f1(prediction: str, answer: str) -> float:
    if prediction != answer and (prediction in _CLOSED_ANSWERS or answer in _CLOSED_ANSWERS):
        return 0.0
    predicted, gold = Counter(prediction.split()), Counter(answer.split())
    shared = (predicted & gold).total()
    return 2.0 * shared / (predicted.total() + gold.total()) if shared else 0.0


def _strip_punctuation(text: str) -> str:
    lowered = _join(text.lower())
    return _join("".join(character for character in lowered if not _is_punctuation(character))) or lowered


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _join(text: str) -> str:
    return " ".join(text.split())
