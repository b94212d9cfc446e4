"""Sampler, trainer and publishing together: what is published is what is trained.

1.  Sampler and trainer log-probs of one version agree within 1e-4 in fp32, step after step, at a temperature other
    than 1, over several turns with observations between them, with one and with several updates per batch; then the
    effective sample size is 1 within rounding.
2.  A sampler that missed a version disagrees, and the mismatch metrics say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from transformers import PreTrainedModel

from seeker.advantages import group_advantages
from seeker.config import PromptConfig
from seeker.engines.policy_trainer import PolicyTrainer
from seeker.engines.torch_sampler import TorchSampler
from seeker.manifest import Manifest
from seeker.packing import Batch, decode_batch, encode_batch, pack_batch
from seeker.publishing import PolicyReader, Publisher
from seeker.rollout import run_rollout
from seeker.tools import SearchTool
from seeker.types import Document, Passage, Question
from seeker.weights import round_to_bf16_
from tests.fakes import MemoryObjects
from tests.learning.builders import make_config
from tests.rollout.tiny import make_talker, make_tokenizer

TOKENIZER = make_tokenizer()
CONFIG = make_config(
    rollout={
        "group_size": 4, "max_searches": 2, "max_turn_tokens": 30, "max_observation_tokens": 40,
        "max_trajectory_tokens": 140, "slots": 5, "temperature": 0.8,
    },
    optimizer={"learning_rate": 3e-3},
    objective={"micro_batch_tokens": 300},
)  # fmt: skip
QUESTIONS = [Question(f"q{number}", f"Where was film {number} made?", ("Velm",)) for number in range(2)]


class OnePassage:
    def search(self, query: str, k: int) -> list[Passage]:
        return [Passage(Document("d1", "Ama", "Ama is a film about a town in Oru."), 1.0)]

    def search_many(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.search(query, k) for query in queries]


def fresh_policy() -> PreTrainedModel:
    model = make_talker(TOKENIZER)
    round_to_bf16_(model)
    return model


def roll_out(sampler: TorchSampler, step: int) -> Batch:
    """A step's batch, through bytes; rewards are the lengths of what the policy wrote, so that groups differ."""
    trajectories, _ = run_rollout(
        QUESTIONS,
        sampler=sampler,
        tool=SearchTool(OnePassage(), 1, CONFIG.prompt.passage),
        tokenizer=TOKENIZER,
        config=CONFIG.rollout,
        prompt=PromptConfig(style="plain"),
        group_size=4,
        step=step,
        seed=0,
    )
    rewarded = [
        type(trajectory)(**{name: getattr(trajectory, name) for name in trajectory.__dataclass_fields__} | {
            "reward": float(sum(len(span.token_ids) for span in trajectory.spans))
        })
        for trajectory in trajectories
    ]  # fmt: skip
    advantages = group_advantages(rewarded, CONFIG.objective, 4)
    assert advantages.num_groups_kept > 0
    packed = pack_batch(advantages, step=step, policy_version=sampler.policy_version, temperature=0.8)
    return decode_batch(encode_batch(packed))


def most_turns(batch: Batch) -> int:
    """Policy spans of the trajectory that has the most."""
    starts = np.flatnonzero(np.diff(batch.loss_mask.astype(np.int8)) == 1) + 1
    return int(np.bincount(np.searchsorted(batch.offsets, starts, side="right")).max())


@pytest.mark.parametrize("updates", [1, 3])
def test_sampler_and_trainer_agree_step_after_step(updates: int) -> None:
    objects = MemoryObjects()
    objective = CONFIG.objective.model_copy(update={"updates_per_batch": updates})
    trainer = PolicyTrainer(CONFIG.model_copy(update={"objective": objective}), fresh_policy())
    model = fresh_policy()
    sampler = TorchSampler(model, TOKENIZER, slots=5, max_length=140, temperature=0.8)
    publisher, held = Publisher(objects, "seeker/run", CONFIG.publishing), None
    for step in range(3):
        manifest = publisher.stage(step, trainer.export())
        publisher.commit(manifest)
        wanted = Manifest.from_json(manifest.to_json())
        PolicyReader(objects).load(wanted, model, held)
        held = wanted
        sampler.adopt(step)
        batch = roll_out(sampler, step)
        assert most_turns(batch) >= 3
        metrics = trainer.update(batch).metrics
        assert metrics["update/updates"] == updates
        assert metrics["mismatch/max"] < 1e-4
        assert metrics["tis/effective_sample_size"] > 0.999
        assert metrics["staleness"] == 0


def test_a_missed_version_shows() -> None:
    trainer = PolicyTrainer(CONFIG, fresh_policy())
    sampler = TorchSampler(fresh_policy(), TOKENIZER, slots=5, max_length=140, temperature=0.8)
    trainer.update(roll_out(sampler, 0))
    sampler.adopt(1)  # without the weights of version 1
    metrics = trainer.update(roll_out(sampler, 1)).metrics
    assert metrics["mismatch/max"] > 1e-3
    assert metrics["tis/effective_sample_size"] < 0.999
    assert np.isfinite(metrics["update/loss"])
