"""The training loop in one process, for drills and tuning: the real modules, no cluster and no flow.

``python -m tests.world.loop --policy data/policy --set questions.world_seed=501`` prints a run's course. Worlds
from 501 on are for tuning; the preset's world is not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.world import World, generate_world
from seeker.advantages import group_advantages, shuffle_rewards
from seeker.config import RunConfig
from seeker.engines.policy import load_policy
from seeker.engines.policy_trainer import PolicyTrainer
from seeker.engines.torch_sampler import TorchSampler
from seeker.packing import pack_batch
from seeker.presets import load_config
from seeker.retrieval.bm25 import Bm25Index, build_index
from seeker.rewards import score_group
from seeker.rollout import run_rollout
from seeker.tools import SearchTool
from seeker.types import Question, Trajectory


@dataclass(frozen=True, slots=True)
class Score:
    """Exact match and searches, over all and by kind. Example: ``Score(.84, 1.7, {"director": (.95, 1.0)})``."""

    exact_match: float
    searches: float
    by_kind: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        kinds = " ".join(f"{kind}={match:.2f}({hops:.1f})" for kind, (match, hops) in sorted(self.by_kind.items()))
        return f"exact match {self.exact_match:.3f} searches {self.searches:.2f} {kinds}"


class Loop:
    """One policy, one world, one run."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        torch.set_num_threads(1)
        assert config.questions.world_seed is not None
        self.config = config
        self.world: World = generate_world(config.questions.world_seed)
        index = Bm25Index.open(build_index(self.world.documents, config.index, folder))
        self.tool = SearchTool(index, config.rollout.top_k, config.prompt.passage)
        self.model, tokenizer = load_policy(config.policy)
        self.tokenizer: Any = tokenizer
        self.trainer = PolicyTrainer(config, self.model)
        rollout = config.rollout
        self.sampler = TorchSampler(
            self.model,
            self.tokenizer,
            slots=rollout.slots,
            max_length=rollout.max_trajectory_tokens,
            temperature=rollout.temperature,
        )
        self.order = list(self.world.train)
        random.Random(config.seed).shuffle(self.order)

    def rollout(self, questions: list[Question], group_size: int, greedy: bool = False) -> list[Trajectory]:
        """Scored trajectories, question by question."""
        trajectories, _ = run_rollout(
            questions,
            sampler=self.sampler,
            tool=self.tool,
            tokenizer=self.tokenizer,
            config=self.config.rollout,
            prompt=self.config.prompt,
            group_size=group_size,
            step=self.trainer.version,
            seed=self.config.seed,
            greedy=greedy,
        )
        groups = (trajectories[at * group_size : (at + 1) * group_size] for at in range(len(questions)))
        pairs = zip(questions, groups, strict=True)
        return [one for question, group in pairs for one in score_group(question, group, self.config.reward)]

    def step(self) -> float:
        """One step of training; the exact match of its trajectories."""
        number, size = self.trainer.version, self.config.rollout.prompts_per_step
        questions = [self.order[at % len(self.order)] for at in range(number * size, (number + 1) * size)]
        per_call = self.config.rollout.prompts_per_task
        trajectories: list[Trajectory] = []
        for start in range(0, size, per_call):
            trajectories += self.rollout(questions[start : start + per_call], self.config.rollout.group_size)
        exact_match = float(np.mean([one.reward_terms["exact_match"] for one in trajectories]))
        if self.config.reward.shuffle:
            trajectories = shuffle_rewards(trajectories, [self.config.seed, number])
        advantages = group_advantages(trajectories, self.config.objective, self.config.rollout.group_size)
        temperature = self.config.rollout.temperature
        self.trainer.update(pack_batch(advantages, step=number, policy_version=number, temperature=temperature))
        self.sampler.adopt(self.trainer.version)
        return exact_match

    def evaluate(self, num_questions: int, greedy: bool = True) -> Score:
        """The policy on the first held-out questions."""
        questions = self.world.heldout[:num_questions]
        rows: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for question, one in zip(questions, self.rollout(questions, 1, greedy), strict=True):
            rows[question.kind].append((one.reward_terms["exact_match"], len(one.searches)))
        everything = np.array([row for kind in rows.values() for row in kind])
        means = {kind: tuple(np.array(found).mean(axis=0).tolist()) for kind, found in rows.items()}
        return Score(*everything.mean(axis=0).tolist(), by_kind=means)


def run(
    config: RunConfig, folder: Path, num_questions: int, report: Callable[[str], None] = print
) -> tuple[Score, ...]:
    """Train `config.steps` steps; greedy and sampled scores before, and the same after."""
    loop = Loop(config, folder)
    scores = [loop.evaluate(num_questions, greedy) for greedy in (True, False)]
    report(f"start greedy {scores[0]}\nstart sampled {scores[1]}")
    began = time.perf_counter()
    for step in range(1, config.steps + 1):
        exact_match = loop.step()
        report(f"step {step} exact match {exact_match:.3f} at {time.perf_counter() - began:.0f} s")
        if config.evaluation.every and step % config.evaluation.every == 0 and step < config.steps:
            report(f"step {step} greedy {loop.evaluate(num_questions)}")
    scores += [loop.evaluate(num_questions, greedy) for greedy in (True, False)]
    report(f"end greedy {scores[2]}\nend sampled {scores[3]}")
    return tuple(scores)


def main() -> None:
    """A run's course on the terminal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="data/policy")
    parser.add_argument("--num-questions", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE")
    arguments = parser.parse_args()
    config = load_config("laptop", ["questions.world_seed=501", f"policy.path={arguments.policy}", *arguments.set])
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder), arguments.num_questions, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
