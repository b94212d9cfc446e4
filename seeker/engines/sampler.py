"""What a rollout needs of an engine: turns of many sequences, sampled side by side.

Token ids in, token ids out. A sequence is one trajectory as the engine sees it: its first request brings the prompt,
each later one only what was appended since the completion before. One rollout call opens the sampler, submits,
collects and releases; nothing is shared with another call, so that a call repeated gives the same bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from seeker.types import Completion, TokenIds


@dataclass(frozen=True, slots=True)
class SampleParams:
    """How one rollout call samples. Example: ``SampleParams(stop_strings=("</search>", "</answer>"))``."""

    stop_strings: tuple[str, ...]
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """The next turn of a sequence.

    `key` (128 bits, the same in every request of a sequence) is the sequence's source of randomness: nothing else may
    decide what is sampled but the key, the tokens so far and the policy.
    Example: ``SampleRequest(sequence=3, token_ids=prompt, max_tokens=128, key=sequence_key(0, 4, "q7", 1))``.
    """

    sequence: int
    token_ids: TokenIds  # [T] the prompt, or the tokens appended since the last completion
    max_tokens: int
    key: int


@dataclass(frozen=True, slots=True)
class SamplerCounts:
    """Tokens since `open`: sampled ones, and those fed without being sampled (a shared prompt counts once)."""

    generated_tokens: int
    prefilled_tokens: int


class Sampler(Protocol):
    """A batch of sequences over one policy version. Waiting sequences enter in the order of their first request."""

    @property
    def policy_version(self) -> int: ...

    @property
    def temperature(self) -> float: ...

    @property
    def max_length(self) -> int:
        """Tokens that one sequence can hold."""
        ...

    def adopt(self, policy_version: int) -> None:
        """The weights are now those of `policy_version`: drops everything computed with older ones."""
        ...

    def open(self, params: SampleParams) -> None:
        """Forgets all sequences and starts a new call."""
        ...

    def submit(self, request: SampleRequest) -> None: ...

    def collect(self) -> list[tuple[int, Completion]]:
        """Samples until at least one submitted turn has ended; the ended ones in the order of their sequences."""
        ...

    def release(self, sequence: int) -> None:
        """The sequence is over: its place goes to a waiting one."""
        ...

    def counts(self) -> SamplerCounts: ...


def sequence_key(seed: int, step: int, question_id: str, index: int) -> int:
    """The randomness of one trajectory, from what names it alone (128 bits)."""
    text = f"{seed}\0{step}\0{question_id}\0{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
