"""One trajectory as a state machine: which turn to sample next, what to answer it with, when and why to end.

A generator without an engine: it yields what it wants sampled, is sent the completion, and returns the trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from seeker.actions import AnswerAction, Fault, Malformed, SearchAction, count_forged, parse_action
from seeker.config import PromptConfig, RolloutConfig
from seeker.observations import render_observation
from seeker.prompt import Tokenizer, correction_text, encode
from seeker.tools import Tool
from seeker.types import (
    Author,
    Completion,
    FinishReason,
    Question,
    Search,
    Span,
    StopReason,
    TokenIds,
    Trajectory,
)

_FAULT_REASONS = {Fault.ENDED: StopReason.ENDED, Fault.TURN_TOKENS: StopReason.TURN_TOKENS}


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What the sampler is to do next. Example: ``TurnRequest(token_ids=observation, max_tokens=128)``."""

    token_ids: TokenIds  # [T] what was appended since the last completion; the prompt at first
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What all trajectories of one rollout share."""

    config: RolloutConfig
    prompt: PromptConfig
    tokenizer: Tokenizer
    tool: Tool
    policy_version: int
    step: int
    on_observation: Callable[[bool], None] = lambda is_cut: None  # told whether an observation was cut


@dataclass(slots=True)
class _Ledger:
    """A trajectory while it grows."""

    spans: list[Span]
    num_tokens: int
    num_turns: int = 0
    num_malformed: int = 0
    num_corrections: int = 0
    num_forged: int = 0
    searches: list[Search] = field(default_factory=list[Search])
    answer: str | None = None

    def append(self, span: Span) -> None:
        self.spans.append(span)
        self.num_tokens += len(span.token_ids)


def trajectory_turns(
    question: Question, index: int, prompt_spans: tuple[Span, ...], rules: Rules
) -> Generator[TurnRequest, Completion, Trajectory]:
    """Plays the trajectory `index` of `question`.

    Example: yields ``TurnRequest(prompt)``, is sent ``<search>Ama</search>``, yields ``TurnRequest(observation)``, is
    sent ``<answer>Velm</answer>``, returns ``Trajectory(stop_reason=ANSWERED, num_turns=2, answer="Velm", ...)``.
    """
    ledger = _Ledger(list(prompt_spans), sum(len(span.token_ids) for span in prompt_spans))
    new_ids = np.concatenate([span.token_ids for span in prompt_spans])
    while room := _room(ledger, rules.config):
        completion = yield TurnRequest(new_ids, room)
        _record(completion, ledger, rules.policy_version)
        reply = _reply(completion, room, ledger, rules)
        if isinstance(reply, StopReason):
            return _close(ledger, reply, question, index, rules.step)
        if not _fits(reply, ledger, rules.config):
            break  # an observation that no turn can follow is left out
        ledger.append(Span(Author.ENVIRONMENT, reply))
        new_ids = reply
    return _close(ledger, StopReason.TRAJECTORY_TOKENS, question, index, rules.step)


def _room(ledger: _Ledger, config: RolloutConfig) -> int:
    """Tokens that the next turn may have, 0 when the trajectory is full."""
    return max(0, min(config.max_turn_tokens, config.max_trajectory_tokens - ledger.num_tokens))


def _fits(reply: TokenIds, ledger: _Ledger, config: RolloutConfig) -> bool:
    """Whether a turn can follow `reply`."""
    return ledger.num_tokens + len(reply) < config.max_trajectory_tokens


def _record(completion: Completion, ledger: _Ledger, policy_version: int) -> None:
    ledger.append(Span(Author.POLICY, completion.token_ids, completion.logprobs, policy_version))
    ledger.num_turns += 1
    ledger.num_forged += count_forged(completion.text)


def _reply(completion: Completion, room: int, ledger: _Ledger, rules: Rules) -> TokenIds | StopReason:
    """What the environment appends after this turn, or why the trajectory ends with it."""
    if completion.finish is FinishReason.LENGTH and room < rules.config.max_turn_tokens:
        ledger.num_malformed += 1
        return StopReason.TRAJECTORY_TOKENS
    action = parse_action(completion.text, completion.finish)
    match action:
        case AnswerAction(text):
            ledger.answer = text
            return StopReason.ANSWERED
        case SearchAction(query) if len(ledger.searches) < rules.config.max_searches:
            return _search(query, ledger, rules)
        case SearchAction():
            return _correct(rules.prompt.searches_spent, completion, StopReason.SEARCHES_SPENT, ledger, rules)
        case Malformed(fault):
            ledger.num_malformed += 1
            reason = _FAULT_REASONS.get(fault, StopReason.MALFORMED)
            return _correct(rules.prompt.malformed, completion, reason, ledger, rules)


def _search(query: str, ledger: _Ledger, rules: Rules) -> TokenIds:
    found = rules.tool(query)
    rendered = render_observation(
        found,
        rules.prompt,
        rules.tokenizer,
        rules.config.max_observation_tokens,
        searches_spent=len(ledger.searches) + 1 == rules.config.max_searches,
    )
    rules.on_observation(rendered.is_cut)
    num_shown = rendered.num_shown if _fits(rendered.token_ids, ledger, rules.config) else 0
    ledger.searches.append(Search(query, found.document_ids[:num_shown]))
    return rendered.token_ids


def _correct(
    text: str, completion: Completion, reason: StopReason, ledger: _Ledger, rules: Rules
) -> TokenIds | StopReason:
    """A short observation that says what was expected, while such corrections last; then the end."""
    if ledger.num_corrections >= rules.config.max_malformed:
        return reason
    ledger.num_corrections += 1
    after_eos = completion.finish is FinishReason.EOS
    return encode(rules.tokenizer, correction_text(rules.prompt, rules.tokenizer, text, after_eos=after_eos))


def _close(ledger: _Ledger, reason: StopReason, question: Question, index: int, step: int) -> Trajectory:
    return Trajectory(
        question_id=question.id,
        group_id=f"{step:06d}/{question.id}",
        index=index,
        spans=tuple(ledger.spans),
        stop_reason=reason,
        num_turns=ledger.num_turns,
        num_malformed=ledger.num_malformed,
        num_forged_observations=ledger.num_forged,
        searches=tuple(ledger.searches),
        answer=ledger.answer,
    )
