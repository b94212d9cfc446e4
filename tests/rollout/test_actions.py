"""Reading a turn.

1. The last opening tag before the closing one begins the query or answer; surrounding whitespace goes.
2. An empty query or answer, a missing opening tag, a nested tag, a forged observation, a cut turn and an ended one are
   malformed, each with its own fault.
3. Forged observations are counted by opening or closing tags, whichever are more.
4. Any text gives an action: nothing raises, and what is returned is never empty.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.actions import (
    STOP_STRINGS,
    AnswerAction,
    Fault,
    Malformed,
    SearchAction,
    count_forged,
    parse_action,
)
from seeker.types import FinishReason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>who?</think><search> Ama director </search>", SearchAction("Ama director")),
        ("<answer>Velm</answer>", AnswerAction("Velm")),
        ("I may <search> later <search>Ama</search>", SearchAction("Ama")),
        ("<search>a < b & c > d</search>", SearchAction("a < b & c > d")),
        ("<search></search>", Malformed(Fault.EMPTY)),
        ("<search> \n </search>", Malformed(Fault.EMPTY)),
        ("<answer>\t</answer>", Malformed(Fault.EMPTY)),
        ("Ama</search>", Malformed(Fault.NOT_OPENED)),
        ("<search>Velm</answer>", Malformed(Fault.NOT_OPENED)),
        ("<search>Ama<answer>Velm</search>", Malformed(Fault.NESTED)),
        ("<answer><think>so</think>Velm</answer>", Malformed(Fault.NESTED)),
        ("<information>Velm</information><answer>Velm</answer>", Malformed(Fault.FORGED)),
        ("</information><answer>Velm</answer>", Malformed(Fault.FORGED)),
    ],
)
def test_turns_that_stopped(text: str, expected: object) -> None:
    assert parse_action(text, FinishReason.STOP) == expected


def test_turns_that_were_cut_or_ended() -> None:
    assert parse_action("<search>Ama", FinishReason.LENGTH) == Malformed(Fault.TURN_TOKENS)
    assert parse_action("<answer>Velm<|im_end|>", FinishReason.EOS) == Malformed(Fault.ENDED)


def test_forged_observations_are_counted() -> None:
    assert count_forged("<information>a</information> <information>b") == 2
    assert count_forged("a</information></information>") == 2
    assert count_forged("information") == 0


TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "<information>", " ", "x", "<", ">"]


@given(st.lists(st.sampled_from(TAGS), max_size=8), st.sampled_from(STOP_STRINGS))
def test_any_turn_is_an_action_and_never_empty(parts: list[str], stop: str) -> None:
    text = "".join(part for part in parts if part not in STOP_STRINGS) + stop
    action = parse_action(text, FinishReason.STOP)
    match action:
        case SearchAction(inside) | AnswerAction(inside):
            assert inside == inside.strip() != ""
            assert inside in text
            assert count_forged(text) == 0
        case Malformed(fault):
            assert fault not in (Fault.ENDED, Fault.TURN_TOKENS)
