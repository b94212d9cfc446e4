"""The data that travels: questions, documents, spans, trajectories.

Letters in shape comments have one meaning in the whole library: B sequences, T tokens per sequence, N packed tokens,
G group size, Q questions, V vocabulary, K passages, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """One item of a question set.

    Example: ``Question(id="q7", text="In which town was the director of Ama born?", answers=("Velm",),
    kind="birthplace", supporting_titles=("Ama", "Iro Tal"))``.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    kind: str = ""
    supporting_titles: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """One row of a corpus. Example: ``Document(id="d3", title="Velm", text="Velm is a town in Oru.")``."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """One result of a query: a document and its retrieval score (higher is better)."""

    document: Document
    score: float


class Author(StrEnum):
    """Who wrote a span."""

    SYSTEM = "system"
    USER = "user"
    POLICY = "policy"
    ENVIRONMENT = "environment"


class FinishReason(StrEnum):
    """Why one sampler call (one turn) ended."""

    STOP = "stop"  # a stop string was completed; it is kept in the text
    EOS = "eos"  # the policy sampled an end-of-sequence token; it is kept in the ids
    LENGTH = "length"  # the turn's token limit was reached


class StopReason(StrEnum):
    """Why a trajectory ended. Required on every trajectory."""

    ANSWERED = "answered"  # a well-formed <answer> with text
    SEARCHES_SPENT = "searches_spent"  # the turn after the last search brought no answer
    MALFORMED = "malformed"  # a malformed turn after the corrective observations were spent
    ENDED = "ended"  # end-of-sequence without an action, corrective observations spent
    TURN_TOKENS = "turn_tokens"  # a turn reached its token limit, corrective observations spent
    TRAJECTORY_TOKENS = "trajectory_tokens"  # the trajectory's token limit left no room for another turn


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of one sampler call.

    `token_ids` end with the token that completed the stop string; `text` is cut right after the stop string.
    Example: ``Completion(token_ids=[5, 9, 2], logprobs=[-.1, -.3, 0.], text="<search>Ama</search>", finish=STOP)``.
    """

    token_ids: TokenIds  # [T]
    logprobs: Logprobs  # [T] natural log, of the distribution that was sampled from
    text: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens with one author; stores only the tokens it adds.

    Only policy spans carry `logprobs` (one per token, by the sampler) and `policy_version`.
    Example: ``Span(Author.POLICY, token_ids=[5, 9, 2], logprobs=[-.1, -.3, 0.], policy_version=4)``.
    """

    author: Author
    token_ids: TokenIds  # [T]
    logprobs: Logprobs | None = None  # [T] on policy spans
    policy_version: int | None = None

    def __post_init__(self) -> None:
        is_policy = self.author is Author.POLICY
        if is_policy != (self.logprobs is not None) or is_policy != (self.policy_version is not None):
            raise ValueError("policy spans, and no others, carry logprobs and policy_version")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens with {len(self.logprobs)} logprobs")


@dataclass(frozen=True, slots=True)
class Search:
    """One search of a trajectory: the query as the policy wrote it and the ids of the passages it was shown."""

    query: str
    document_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Record of one attempt at a question: an append-only list of spans and how it ended.

    `group_id` names the siblings (same question, same step): ``f"{step:06d}/{question_id}"``. `reward_terms` holds the
    named terms of the reward (``exact_match``, ``f1``, ...); `reward` is what is trained on.
    """

    question_id: str
    group_id: str
    index: int  # 0 .. G-1 within its group
    spans: tuple[Span, ...]
    stop_reason: StopReason
    num_turns: int
    num_malformed: int
    num_forged_observations: int  # <information> tags that the policy wrote itself
    searches: tuple[Search, ...] = ()
    answer: str | None = None
    reward: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict[str, float])


def token_ids(trajectory: Trajectory) -> TokenIds:
    """All tokens in order, exactly as the sampler saw and gave them. Shape [T]."""
    return np.concatenate([span.token_ids for span in trajectory.spans]).astype(np.int32, copy=False)


def loss_mask(trajectory: Trajectory) -> Mask:
    """True where the policy sampled the token. Shape [T]."""
    return np.concatenate(
        [np.full(len(span.token_ids), span.author is Author.POLICY, dtype=np.bool_) for span in trajectory.spans]
    )


def sampler_logprobs(trajectory: Trajectory) -> Logprobs:
    """The sampler's log-probs on policy tokens, 0 elsewhere. Shape [T]."""
    parts = [
        np.zeros(len(span.token_ids), np.float32) if span.logprobs is None else span.logprobs
        for span in trajectory.spans
    ]
    return np.concatenate(parts).astype(np.float32, copy=False)


def policy_versions(trajectory: Trajectory) -> tuple[int, ...]:
    """The versions that wrote this trajectory, in order, without repetition."""
    seen: list[int] = []
    for span in trajectory.spans:
        if span.policy_version is not None and span.policy_version not in seen:
            seen.append(span.policy_version)
    return tuple(seen)
