"""Two trainer ranks with one thread each against one rank with two: the same updates, in one run, turn about.

Policies: the laptop preset's, on batches of its size, and one ten times as large. The ratio of throughputs is what
splitting the work costs: the sums over ranks, uneven slices, and what is done by every rank alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from seeker.config import PolicyConfig, RunConfig
from seeker.engines.policy import load_policy
from seeker.engines.policy_trainer import PolicyTrainer
from seeker.packing import Batch
from seeker.presets import load_config
from tests.learning.rank_processes import Place, Processes, rendezvous

TARGET = 0.85
THREADS = 2  # in all
THIS = "tests.benchmarks.bench_ranks"


@dataclass(frozen=True, slots=True)
class Work:
    """A policy and the batches that it is trained on."""

    name: str
    hidden: int | None  # None: the laptop preset's policy
    layers: int
    num_trajectories: int


WORKS = (
    Work("laptop policy, 192 trajectories", None, 0, 192),
    Work("9 M parameters, 64 trajectories", 320, 6, 64),
)
_held: dict[str, Any] = {}  # in a rank's process: its trainer


def prepare(place: Place, work: Work, num_threads: int) -> int:
    """Load the policy, join, do one update; the policy's number of parameters."""
    torch.set_num_threads(num_threads)
    config = load_config("laptop")
    model = _model(config, work)
    ranks = place.join() if place.world > 1 else None
    _held["trainer"] = PolicyTrainer(config, model, ranks=ranks)
    update(place, work)
    return sum(parameter.numel() for parameter in model.parameters())


def update(place: Place, work: Work) -> tuple[float, float, float]:
    """One update: its seconds, those of them spent waiting for the other rank, and its seconds of CPU time."""
    trainer: PolicyTrainer = _held["trainer"]
    batch = make_batch(work.num_trajectories, trainer.version, trainer.model.config.vocab_size)
    waited, busy, started = trainer.ranks.waited_s, time.process_time(), time.perf_counter()
    trainer.update(batch)
    return time.perf_counter() - started, trainer.ranks.waited_s - waited, time.process_time() - busy


def make_batch(num_trajectories: int, step: int, vocabulary: int) -> Batch:
    """Lengths and trainable share as the laptop preset's trajectories have them."""
    draw = np.random.default_rng(step)
    lengths = draw.integers(90, 260, num_trajectories)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    num_tokens = int(offsets[-1])
    mask = draw.random(num_tokens) < 0.3
    mask[offsets[:-1]] = False
    return Batch(
        token_ids=draw.integers(0, vocabulary, num_tokens).astype(np.int32),
        loss_mask=mask,
        sampler_logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
        offsets=offsets,
        advantages=draw.standard_normal(num_trajectories).astype(np.float32),
        step=step,
        policy_version=step,
        temperature=1.0,
    )


def _model(config: RunConfig, work: Work) -> PreTrainedModel:
    if work.hidden is None:
        return load_policy(PolicyConfig(path=config.policy.path))[0]
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=1320,
        hidden_size=work.hidden,
        intermediate_size=3 * work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=work.hidden // 32,
        num_key_value_heads=work.hidden // 64,
        tie_word_embeddings=True,
    )
    shape._attn_implementation = "sdpa"
    return LlamaForCausalLM(shape).eval()


def compare(work: Work, repeats: int) -> float:
    """Prints both sides; the ratio of their throughputs."""
    sides = {1: Processes(1), 2: Processes(2)}
    meeting = replace(rendezvous(f"bench-{work.name}"), join_deadline_s=120.0, sum_deadline_s=120.0)
    try:
        for world, processes in sides.items():
            parameters = processes.call(f"{THIS}:prepare", world, meeting, work, THREADS // world)[0]
        seconds: dict[int, list[float]] = {1: [], 2: []}
        busy: dict[int, list[float]] = {1: [], 2: []}
        waited: list[float] = []
        for _ in range(repeats):
            for world, processes in sides.items():
                told = processes.call(f"{THIS}:update", world, meeting, work)
                seconds[world].append(max(each for each, _, _ in told))
                busy[world].append(sum(each for _, _, each in told))
                if world > 1:
                    waited.append(max(each for _, each, _ in told) / seconds[world][-1])
    finally:
        for processes in sides.values():
            processes.close()
    tokens = make_batch(work.num_trajectories, 1, 1320).num_tokens
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    print(f"{work.name}: {parameters / 1e6:.1f} M parameters, about {tokens} tokens an update")
    for world in sides:
        median = statistics.median(seconds[world])
        print(f"  {world} rank(s) of {THREADS // world} thread(s): {median:.2f} s, {tokens / median:.0f} tokens/s, "
              f"{statistics.median(busy[world]):.2f} s of CPU")  # fmt: skip
    print(f"  longest wait for the other rank: {statistics.median(waited):.1%} of an update")
    ratio = statistics.median(ratios)
    print(f"  ratio 2 ranks / 1 rank: {ratio:.2f} (pairs {min(ratios):.2f} to {max(ratios):.2f}, target {TARGET})")
    return ratio


def main() -> None:
    """Prints throughputs and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    os.environ["GOMP_SPINCOUNT"] = "0"  # as the services have it
    for work in WORKS:
        compare(work, arguments.repeats)


if __name__ == "__main__":
    main()
