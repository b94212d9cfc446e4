"""A sampler that says what it is told to: the protocol is tested without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from seeker.actions import STOP_STRINGS
from seeker.config import PromptConfig, RolloutConfig
from seeker.engines.sampler import SampleParams, SamplerCounts, SampleRequest
from seeker.prompt import decode, encode
from seeker.rollout import RolloutReport, run_rollout
from seeker.tools import Observation, Tool
from seeker.types import Completion, Document, FinishReason, Passage, Question, TokenIds, Trajectory

EOS = "<|im_end|>"
CONFIG = RolloutConfig(
    max_searches=2,
    top_k=2,
    max_malformed=1,
    max_turn_tokens=40,
    max_observation_tokens=60,
    max_trajectory_tokens=400,
    slots=4,
)
QUESTION = Question("q1", "Where was it made?", ("Velm",))


class ScriptedSampler:
    """Answers the turns of each sequence with the texts of its script, one after another.

    A text that ends with a stop string stops there, one that ends with the end-of-sequence text ends; any other ran
    into the turn's limit. Token ids can be given instead of text.
    """

    temperature = 1.0
    max_length = 100_000

    def __init__(self, tokenizer, scripts: Sequence[Sequence[str | TokenIds]], policy_version: int = 3) -> None:
        self.policy_version = policy_version
        self.requests: list[SampleRequest] = []
        self.released: list[int] = []
        self._tokenizer = tokenizer
        self._scripts = scripts

    def adopt(self, policy_version: int) -> None:
        self.policy_version = policy_version

    def open(self, params: SampleParams) -> None:
        self.params = params
        self._turn = [0] * len(self._scripts)
        self._submitted: list[int] = []

    def submit(self, request: SampleRequest) -> None:
        self.requests.append(request)
        self._submitted.append(request.sequence)

    def collect(self) -> list[tuple[int, Completion]]:
        sequence = self._submitted.pop(0)
        said = self._scripts[sequence][self._turn[sequence]]
        self._turn[sequence] += 1
        ids = encode(self._tokenizer, said) if isinstance(said, str) else np.asarray(said, np.int32)
        return [(sequence, make_completion(self._tokenizer, ids))]

    def release(self, sequence: int) -> None:
        self.released.append(sequence)

    def counts(self) -> SamplerCounts:
        return SamplerCounts(0, sum(len(request.token_ids) for request in self.requests))


def make_completion(tokenizer, ids: TokenIds) -> Completion:
    text = decode(tokenizer, ids)
    finish = FinishReason.EOS if text.endswith(EOS) else FinishReason.LENGTH
    ends = [text.find(stop) + len(stop) for stop in STOP_STRINGS if stop in text]
    if ends:
        text, finish = text[: min(ends)], FinishReason.STOP
    return Completion(ids, np.linspace(-1, -0.5, len(ids), dtype=np.float32), text, finish)


class Shelf:
    """An index that knows its passages by heart and remembers what it was asked."""

    def __init__(self, *texts: str, fail: Callable[[str], None] | None = None) -> None:
        self.queries: list[str] = []
        self._passages = [Passage(Document(f"d{at}", f"T{at}", text), 1.0) for at, text in enumerate(texts)]
        self._fail = fail

    def search(self, query: str, k: int) -> list[Passage]:
        self.queries.append(query)
        if self._fail is not None:
            self._fail(query)
        return self._passages[:k]


class Echo:
    """A tool that answers with what it was asked."""

    def __call__(self, text: str) -> Observation:
        return Observation((f"you asked {text}",))


def play(
    tokenizer,
    *scripts: Sequence[str | TokenIds],
    tool: Tool | None = None,
    config: RolloutConfig = CONFIG,
    prompt: PromptConfig | None = None,
    questions: Sequence[Question] = (QUESTION,),
    greedy: bool = False,
) -> tuple[list[Trajectory], ScriptedSampler, RolloutReport]:
    """A rollout of the scripted turns, one script a trajectory."""
    sampler = ScriptedSampler(tokenizer, scripts)
    trajectories, report = run_rollout(
        questions,
        sampler=sampler,
        tool=tool or Echo(),
        tokenizer=tokenizer,
        config=config,
        prompt=prompt or PromptConfig(),
        group_size=len(scripts) // len(questions),
        step=5,
        seed=0,
        greedy=greedy,
    )
    return trajectories, sampler, report
