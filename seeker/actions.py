"""What a turn asks for, read from the policy's own text. Pure.

The protocol's tags are plain text: a tokenizer may spell each with one token or with several.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from seeker.types import FinishReason

SEARCH_OPEN, SEARCH_CLOSE = "<search>", "</search>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
INFORMATION_OPEN, INFORMATION_CLOSE = "<information>", "</information>"
STOP_STRINGS = (SEARCH_CLOSE, ANSWER_CLOSE)
_TAGS = (SEARCH_OPEN, SEARCH_CLOSE, ANSWER_OPEN, ANSWER_CLOSE, "<think>", "</think>")


class Fault(StrEnum):
    """What is wrong with a malformed turn."""

    ENDED = "ended"  # end of sequence without an action
    TURN_TOKENS = "turn_tokens"  # cut by the turn's token limit
    NOT_OPENED = "not_opened"  # a closing tag without its opening tag
    EMPTY = "empty"  # an empty query or answer
    NESTED = "nested"  # another tag inside the query or answer
    FORGED = "forged"  # the policy wrote an observation itself


@dataclass(frozen=True, slots=True)
class SearchAction:
    """Example: ``<think>who?</think><search> Ama director </search>`` gives ``SearchAction("Ama director")``."""

    query: str


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """Example: ``<answer>Velm</answer>`` gives ``AnswerAction("Velm")``."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """Example: ``<search> </search>`` gives ``Malformed(Fault.EMPTY)``."""

    fault: Fault


Action = SearchAction | AnswerAction | Malformed


def count_forged(text: str) -> int:
    """Observations that the policy wrote itself: its `<information>` tags, or closing ones where there are more."""
    return max(text.count(INFORMATION_OPEN), text.count(INFORMATION_CLOSE))


def parse_action(text: str, finish: FinishReason) -> Action:
    """The action that `text`, one turn cut right after its stop string, asks for."""
    if finish is FinishReason.LENGTH:
        return Malformed(Fault.TURN_TOKENS)
    if finish is FinishReason.EOS:
        return Malformed(Fault.ENDED)
    if count_forged(text):
        return Malformed(Fault.FORGED)
    is_search = text.endswith(SEARCH_CLOSE)
    opening, closing = (SEARCH_OPEN, SEARCH_CLOSE) if is_search else (ANSWER_OPEN, ANSWER_CLOSE)
    before, found, inside = text.removesuffix(closing).rpartition(opening)
    del before
    if not found:
        return Malformed(Fault.NOT_OPENED)
    if any(tag in inside for tag in _TAGS):
        return Malformed(Fault.NESTED)
    inside = inside.strip()
    if not inside:
        return Malformed(Fault.EMPTY)
    return SearchAction(inside) if is_search else AnswerAction(inside)
