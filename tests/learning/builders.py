"""Small trajectories, batches, policies and trainers for the tests of the learning modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from seeker.config import RunConfig
from seeker.engines.policy_trainer import PolicyTrainer
from seeker.packing import Batch
from seeker.types import Author, Question, Search, Span, StopReason, Trajectory

VOCAB = 97
QUESTION = Question(id="q1", text="In which town was the director of Ama born?", answers=("Velm",))


def make_trajectory(
    question_id: str = "q1",
    index: int = 0,
    *,
    step: int = 0,
    reward: float = 0.0,
    answer: str | None = "Velm",
    version: int = 0,
    seed: int = 0,
    **changes: Any,
) -> Trajectory:
    """Prompt, a search, its observation, an answer; token ids from `seed`."""
    rng = np.random.default_rng([seed, index])

    def ids(count: int) -> Any:
        return rng.integers(0, VOCAB, count).astype(np.int32)

    def policy(count: int) -> Span:
        return Span(Author.POLICY, ids(count), -rng.random(count).astype(np.float32), version)

    spans = (
        Span(Author.USER, ids(5)),
        policy(int(rng.integers(1, 6))),
        Span(Author.ENVIRONMENT, ids(int(rng.integers(1, 9)))),
        policy(int(rng.integers(1, 6))),
    )
    trajectory = Trajectory(
        question_id=question_id,
        group_id=f"{step:06d}/{question_id}",
        index=index,
        spans=spans,
        stop_reason=StopReason.ANSWERED,
        num_turns=2,
        num_malformed=0,
        num_forged_observations=0,
        searches=(Search("Ama director", ("d1", "d2")),),
        answer=answer,
        reward=reward,
        reward_terms={"exact_match": reward},
    )
    return replace(trajectory, **changes)


def make_group(question_id: str, rewards: Sequence[float], **options: Any) -> list[Trajectory]:
    return [make_trajectory(question_id, index, reward=reward, **options) for index, reward in enumerate(rewards)]


def make_batch(num_trajectories: int = 6, *, step: int = 0, seed: int = 0, max_length: int = 24) -> Batch:
    """Random lengths, masks and advantages; the first token of each trajectory is the prompt's."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, max_length + 1, num_trajectories)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n = int(offsets[-1])
    mask = rng.random(n) < 0.5
    mask[offsets[:-1]] = False
    mask[offsets[1:] - 1] = True
    return Batch(
        token_ids=rng.integers(0, VOCAB, n).astype(np.int32),
        loss_mask=mask,
        sampler_logprobs=np.where(mask, -4.5 - rng.random(n), 0.0).astype(np.float32),
        offsets=offsets,
        advantages=rng.standard_normal(num_trajectories).astype(np.float32),
        step=step,
        policy_version=step,
        temperature=1.0,
    )


def make_policy(seed: int = 0, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,  # so that the policy is far from uniform
    )
    config._attn_implementation = attention
    return Qwen2ForCausalLM(config).eval()


def make_config(**sections: Any) -> RunConfig:
    sections.setdefault("optimizer", {"learning_rate": 1e-3})
    return RunConfig.model_validate({"policy": {"path": "none"}, "questions": {"world_seed": 1}, **sections})


def make_trainer(seed: int = 0, *, attention: str = "sdpa", ranks: Any = None, **sections: Any) -> PolicyTrainer:
    return PolicyTrainer(make_config(**sections), make_policy(seed, attention), ranks=ranks)


def make_llama(seed: int = 0, *, tied: bool = True) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config).eval()


def make_llama_trainer(*, ranks: Any = None, tied: bool = True, **objective: Any) -> PolicyTrainer:
    """In buckets of 8 KB, of which the model fills several."""
    return PolicyTrainer(make_config(objective=objective), make_llama(tied=tied), ranks=ranks, bucket_bytes=8192)


def rank_gradients(ranks: Any, *, tied: bool, num_trajectories: int, **objective: Any) -> dict[str, Any]:
    """The summed gradients and the loss of one batch, before anything is applied."""
    trainer = make_llama_trainer(ranks=ranks, tied=tied, **objective)
    batch = make_batch(num_trajectories, seed=num_trajectories)
    rows = trainer._rows(batch)
    scores, loss = trainer._accumulate(batch, rows, None, None)
    gradients = {name: view.numpy().copy() for name, view in trainer._masters.buckets.views.items()}
    return {"gradients": gradients, "scores": scores.numpy(), "loss": loss.item(), "passes": len(rows)}


def state_bytes(trainer: PolicyTrainer) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in trainer._masters.state().items()}
