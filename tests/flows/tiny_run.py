"""A whole run small enough for a test: a random policy of two layers and a hand-made question file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seeker.config import RewardConfig, RunConfig
from seeker.rewards import score_group
from seeker.types import Question, Trajectory
from tests.rollout.tiny import make_model, make_tokenizer

FILMS = ("Ama", "Boro", "Cid", "Dune", "Eos", "Fado", "Gil", "Hum", "Ivo", "Jin", "Kem", "Lua")


def write_policy(folder: Path, seed: int = 0) -> Path:
    """A policy folder in transformers' layout."""
    tokenizer = make_tokenizer()
    make_model(vocab_size=len(tokenizer) + 7, seed=seed, scale=1.0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_questions(path: Path) -> Path:
    """HotpotQA records, one a line."""
    records = [
        {
            "_id": f"q{number:02d}",
            "question": f"Who directed {film}?",
            "answer": f"{film}son",
            "type": "bridge",
            "supporting_facts": [[film, 0]],
            "context": [[film, [f"{film} is a film by {film}son."]], [f"{film}son", [f"{film}son directs."]]],
        }
        for number, film in enumerate(FILMS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def tiny_config(folder: Path, **changes: Any) -> RunConfig:
    """Two steps of 4 questions x 3 trajectories in calls of 2, on `folder`'s policy and questions."""
    policy, questions = folder / "policy", folder / "questions.jsonl"
    if not policy.is_dir():
        write_policy(policy)
        write_questions(questions)
    settings: dict[str, Any] = {
        "out": str(folder / "run"),
        "steps": 2,
        "policy": {"path": str(policy)},
        "questions": {"sources": [{"path": str(questions)}], "heldout_share": 0.3},
        "rollout": {
            "prompts_per_step": 4,
            "prompts_per_task": 2,
            "group_size": 3,
            "max_searches": 1,
            "top_k": 1,
            "max_turn_tokens": 8,
            "max_observation_tokens": 48,
            "max_trajectory_tokens": 256,
            "slots": 8,
            "call_deadline_s": 240,
        },
        # A random policy answers nothing: rewards by its tokens give the update something to do.
        "reward": {"function": "tests.flows.tiny_run:reward_by_tokens"},
        "optimizer": {"learning_rate": 1e-3},
        "evaluation": {"every": 1, "num_questions": 3},
        "checkpoint": {"every": 1},
        "cluster": {"trainer_threads": 1, "retry_pause_s": 0.1},
    }
    for name, value in changes.items():
        settings[name] = {**settings.get(name, {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(settings)


def reward_by_tokens(question: Question, trajectories: Sequence[Trajectory], config: RewardConfig) -> list[Trajectory]:
    """The usual terms; the reward is what a random policy varies in: the tokens it wrote."""
    scored = score_group(question, trajectories, config)
    return [replace(each, reward=float(sum(int(span.token_ids.sum()) for span in each.spans) % 7)) for each in scored]
