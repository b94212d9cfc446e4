"""A rollout over the torch sampler.

1. A call repeated gives the same bytes: in one sampler, in a fresh one, after other calls; other seeds and steps give
   others.
2. Sampler and full forward pass agree within 1e-4 on every token the policy wrote, over whole trajectories.
3. Trajectories end for every reason that a random policy can reach, and each keeps its limits.
4. The report counts what was sampled and prefilled.
5. A failing retriever leaves a sampler that the next call can use.
"""

from __future__ import annotations

import numpy as np
import pytest

from seeker.config import PromptConfig, RolloutConfig
from seeker.engines.torch_sampler import TorchSampler
from seeker.errors import RetrievalError
from seeker.rollout import run_rollout
from seeker.tools import SearchTool
from seeker.trajectories import encode_trajectories
from seeker.types import Author, Question, StopReason, loss_mask, sampler_logprobs, token_ids
from tests.rollout.scripted import Shelf
from tests.rollout.test_sampler_contract import full_logprobs
from tests.rollout.tiny import make_talker, make_tokenizer

TOKENIZER = make_tokenizer()
MODEL = make_talker(TOKENIZER)
CONFIG = RolloutConfig(
    max_searches=2, top_k=2, max_malformed=1, max_turn_tokens=30, max_observation_tokens=56, max_trajectory_tokens=130
)
QUESTIONS = [Question(f"q{at}", f"In which town was film {at} made?", ("Velm",)) for at in range(2)]


def make_sampler(slots: int = 10) -> TorchSampler:
    return TorchSampler(MODEL, TOKENIZER, slots=slots, max_length=130, policy_version=2)


def roll(sampler: TorchSampler, *, step: int = 0, seed: int = 0, greedy: bool = False, fail=None):
    return run_rollout(
        QUESTIONS,
        sampler=sampler,
        tool=SearchTool(Shelf("Velm is a town in Oru.", "Ama is a film.", fail=fail), 2),
        tokenizer=TOKENIZER,
        config=CONFIG,
        prompt=PromptConfig(system="Search. "),
        group_size=1 if greedy else 6,
        step=step,
        seed=seed,
        greedy=greedy,
    )


def test_a_repeated_call_gives_the_same_bytes() -> None:
    sampler = make_sampler()
    first = encode_trajectories(roll(sampler)[0])
    others = [encode_trajectories(roll(sampler, **change)[0]) for change in ({"step": 1}, {"seed": 1})]
    assert encode_trajectories(roll(sampler)[0]) == first
    assert encode_trajectories(roll(make_sampler())[0]) == first
    assert len({first, *others}) == 3
    greedy = encode_trajectories(roll(sampler, greedy=True)[0])
    assert encode_trajectories(roll(make_sampler(), greedy=True, seed=1)[0]) == greedy


def test_other_batches_give_the_same_tokens() -> None:
    some, all_at_once = roll(make_sampler(5))[0], roll(make_sampler(12))[0]
    for one, other in zip(some, all_at_once, strict=True):
        assert token_ids(one).tolist() == token_ids(other).tolist()


def test_whole_trajectories_agree_with_a_full_forward_pass() -> None:
    trajectories, report = roll(make_sampler())
    assert len(trajectories) == 12
    for trajectory in trajectories:
        mask = loss_mask(trajectory)[1:]
        expected = full_logprobs(MODEL, token_ids(trajectory))
        assert np.abs(expected - sampler_logprobs(trajectory)[1:])[mask].max() < 1e-4
    sampled = sum(int(loss_mask(trajectory).sum()) for trajectory in trajectories)
    observed = sum(
        len(span.token_ids) for each in trajectories for span in each.spans if span.author is Author.ENVIRONMENT
    )
    prompts = sum(len(span.token_ids) for each in trajectories[::6] for span in each.spans[:2])
    assert report.generated_tokens == sampled
    assert observed <= report.prefilled_tokens - prompts <= observed + 12
    assert report.sampler_s + report.retrieval_s <= report.wall_s


def test_trajectories_keep_their_limits_and_say_why_they_ended() -> None:
    trajectories = [each for step in range(3) for each in roll(make_sampler(), step=step)[0]]
    assert {each.stop_reason for each in trajectories} >= {
        StopReason.ANSWERED, StopReason.TURN_TOKENS, StopReason.TRAJECTORY_TOKENS, StopReason.MALFORMED
    }  # fmt: skip
    assert sum(len(each.searches) for each in trajectories) > 10
    for each in trajectories:
        assert len(token_ids(each)) <= 130
        assert len(each.searches) <= 2
        assert (each.answer is not None) == (each.stop_reason is StopReason.ANSWERED)
        for span in each.spans:
            assert len(span.token_ids) <= {Author.POLICY: 30, Author.ENVIRONMENT: 56}.get(span.author, 130)


def test_a_failing_retriever_leaves_a_usable_sampler() -> None:
    sampler = make_sampler()
    expected = encode_trajectories(roll(sampler)[0])

    def refuse(query: str) -> None:
        raise RetrievalError("index is gone")

    with pytest.raises(RetrievalError, match="gone"):
        roll(sampler, fail=refuse)
    assert encode_trajectories(roll(sampler)[0]) == expected
