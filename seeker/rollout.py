"""Producing trajectories: many state machines driven over one sampler.

Admission order is fixed, retrieval is synchronous and randomness belongs to each trajectory, so that a call with the
same arguments gives the same trajectories.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from seeker.actions import STOP_STRINGS
from seeker.config import PromptConfig, RolloutConfig
from seeker.engines.sampler import SampleParams, Sampler, SampleRequest, sequence_key
from seeker.errors import ConfigError
from seeker.observations import check_limits
from seeker.prompt import Tokenizer, build_prompt
from seeker.tools import Observation, Tool
from seeker.turns import Rules, TurnRequest, trajectory_turns
from seeker.types import Completion, Question, Trajectory

_Turns = Generator[TurnRequest, Completion, Trajectory]


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """What one rollout call did. `sampler_s` is the time inside the sampler, `wall_s` that of the whole call.

    Example: ``RolloutReport(generated_tokens=9_000, prefilled_tokens=31_000, num_observations=180,
    num_cut_observations=2, sampler_s=2.9, retrieval_s=.1, wall_s=3.1)``.
    """

    generated_tokens: int
    prefilled_tokens: int
    num_observations: int
    num_cut_observations: int  # observations cut to the token limit
    sampler_s: float
    retrieval_s: float
    wall_s: float


class _TimedTool:
    """The tool with its time and its cut observations counted."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.seconds = 0.0
        self.num_observations = 0
        self.num_cut = 0

    def __call__(self, text: str) -> Observation:
        start = time.perf_counter()
        observation = self._tool(text)
        self.seconds += time.perf_counter() - start
        return observation

    def count(self, is_cut: bool) -> None:
        self.num_observations += 1
        self.num_cut += is_cut


def run_rollout(
    questions: Sequence[Question],
    *,
    sampler: Sampler,
    tool: Tool,
    tokenizer: Tokenizer,
    config: RolloutConfig,
    prompt: PromptConfig,
    group_size: int,
    step: int,
    seed: int,
    greedy: bool = False,
) -> tuple[list[Trajectory], RolloutReport]:
    """`group_size` trajectories for every question: question by question, index by index.

    A `RetrievalError` ends the whole call: a failed search is never an observation and never a reward.
    """
    start = time.perf_counter()
    _check(sampler, config, prompt, tokenizer, group_size)
    timed = _TimedTool(tool)
    rules = Rules(config, prompt, tokenizer, timed, sampler.policy_version, step, timed.count)
    turns: list[_Turns] = []
    keys: list[int] = []
    for question in questions:
        spans = build_prompt(question, prompt, tokenizer)
        for index in range(group_size):
            turns.append(trajectory_turns(question, index, spans, rules))
            keys.append(sequence_key(seed, step, question.id, index))
    sampler.open(SampleParams(STOP_STRINGS, greedy))
    trajectories, sampler_s = _drive(turns, keys, sampler)
    counts = sampler.counts()
    report = RolloutReport(
        generated_tokens=counts.generated_tokens,
        prefilled_tokens=counts.prefilled_tokens,
        num_observations=timed.num_observations,
        num_cut_observations=timed.num_cut,
        sampler_s=sampler_s,
        retrieval_s=timed.seconds,
        wall_s=time.perf_counter() - start,
    )
    return trajectories, report


def _drive(turns: Sequence[_Turns], keys: Sequence[int], sampler: Sampler) -> tuple[list[Trajectory], float]:
    """Plays all state machines to their ends; the trajectories in the order of `turns`, and the sampler's seconds."""
    ended: dict[int, Trajectory] = {}
    sampler_s = 0.0

    def advance(sequence: int, completion: Completion | None) -> None:
        try:
            request = turns[sequence].send(completion)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            ended[sequence] = end.value
            if completion is not None:
                sampler.release(sequence)
            return
        sampler.submit(SampleRequest(sequence, request.token_ids, request.max_tokens, keys[sequence]))

    for sequence in range(len(turns)):
        advance(sequence, None)
    while len(ended) < len(turns):
        start = time.perf_counter()
        completed = sampler.collect()
        sampler_s += time.perf_counter() - start
        for sequence, completion in completed:
            advance(sequence, completion)
    return [ended[sequence] for sequence in range(len(turns))], sampler_s


def _check(
    sampler: Sampler, config: RolloutConfig, prompt: PromptConfig, tokenizer: Tokenizer, group_size: int
) -> None:
    if group_size < 1:
        raise ConfigError(f"group_size: expected 1 or more, found {group_size}")
    if sampler.temperature != config.temperature:
        raise ConfigError(
            f"rollout.temperature: the sampler was made for {sampler.temperature}, found {config.temperature}; "
            "log-probs belong to one temperature"
        )
    if sampler.max_length < config.max_trajectory_tokens:
        raise ConfigError(
            f"rollout.max_trajectory_tokens: the sampler holds {sampler.max_length} tokens a sequence, "
            f"found {config.max_trajectory_tokens}"
        )
    check_limits(prompt, tokenizer, config.max_observation_tokens)
