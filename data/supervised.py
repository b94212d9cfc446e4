"""Supervised training of the starting policy on demonstrations: first a reader that is always right, then noise.

A policy that cannot read yet collapses under reinforcement, since guessing pays more than searching. So the first
phase teaches reading (language-model loss on passages as well), and only the second the wrong choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from data.demonstrations import Segment
from seeker.types import Author

ADAM_BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
POOL_BATCHES = 16  # batches that are sorted by length together


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of supervised training. The learning rate falls linearly over its last `decay_share`.

    Example: ``Phase("read", steps=900, learning_rate=4e-3, environment_weight=0.3)``.
    """

    name: str
    steps: int
    learning_rate: float
    environment_weight: float  # loss weight of tokens that the policy does not write; its own weigh 1
    warmup_steps: int = 50
    decay_share: float = 0.5
    final_share: float = 0.05
    batch_size: int = 16


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded demonstration. Example: ``Example(token_ids=[7, 9, 4], is_policy=[False, True, True])``."""

    token_ids: np.ndarray  # [T] int64
    is_policy: np.ndarray  # [T] bool


def encode(segments: list[Segment], tokenizer: Any) -> Example:
    """Every segment is encoded by itself, as prompts and observations are during a rollout."""
    parts = [np.array(tokenizer.encode(segment.text, add_special_tokens=False), np.int64) for segment in segments]
    masks = [np.full(len(part), segment.author is Author.POLICY) for part, segment in zip(parts, segments, strict=True)]
    return Example(np.concatenate(parts), np.concatenate(masks))


def train(
    model: LlamaForCausalLM,
    examples: Iterator[Example],
    phase: Phase,
    rng: random.Random,
    report: Callable[[str], None] = print,
) -> float:
    """Train `model` in place for one phase; the share of its own tokens right over the last 50 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), phase.learning_rate, ADAM_BETAS, weight_decay=WEIGHT_DECAY)
    batches = _batches(examples, phase.batch_size, rng)
    model.train()
    right: list[float] = []
    for step in range(phase.steps):
        for group in optimizer.param_groups:
            group["lr"] = phase.learning_rate * _schedule(step, phase)
        loss, share_right = _loss(model, next(batches), phase.environment_weight)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right = [*right[-49:], share_right]
        if (step + 1) % 50 == 0:
            report(f"{phase.name} {step + 1}/{phase.steps}: loss {loss.item():.3f}, right {np.mean(right):.4f}")
    model.eval()
    return float(np.mean(right))


def _schedule(step: int, phase: Phase) -> float:
    warm = min(1.0, (step + 1) / phase.warmup_steps)
    left = (phase.steps - step) / (phase.decay_share * phase.steps)
    return warm * max(phase.final_share, min(1.0, left))


def _batches(examples: Iterator[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """Batches of similar length, in random order: little padding."""
    while True:
        pool = sorted((next(examples) for _ in range(size * POOL_BATCHES)), key=lambda one: len(one.token_ids))
        batches = [pool[start : start + size] for start in range(0, len(pool), size)]
        rng.shuffle(batches)
        yield from batches


def _loss(model: LlamaForCausalLM, batch: list[Example], environment_weight: float) -> tuple[torch.Tensor, float]:
    """The weighted mean loss per token, and the share of the policy's own tokens that are right."""
    longest = max(len(example.token_ids) for example in batch)
    token_ids = torch.zeros(len(batch), longest, dtype=torch.long)  # [B, T] padded on the right, so no mask is needed
    weights = torch.zeros(len(batch), longest)  # [B, T] of the token as a target
    for row, example in enumerate(batch):
        length = len(example.token_ids)
        token_ids[row, :length] = torch.from_numpy(example.token_ids)
        weights[row, 1:length] = torch.from_numpy(np.where(example.is_policy[1:], 1.0, environment_weight)).float()
    trained = weights[:, 1:] > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=token_ids, use_cache=False).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[trained])  # [N, V]
    targets, weight = token_ids[:, 1:][trained], weights[:, 1:][trained]
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    right = (logits.detach().argmax(-1) == targets)[weight == 1.0].float().mean().item()
    return (losses * weight).sum() / weight.sum(), right
