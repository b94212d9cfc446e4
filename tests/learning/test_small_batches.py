"""Steps with little or nothing to learn from go all the way: advantages, batch, update, publishing, load.

1. Groups of equal reward, and a step whose groups are all void, make a version that is the one before, in no bytes.
2. A trajectory without a turn (its prompt filled it) is carried along and trains nothing; its sibling trains as alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seeker.advantages import group_advantages
from seeker.packing import Batch, decode_batch, encode_batch, pack_batch
from seeker.publishing import PolicyReader, Publisher
from seeker.statistics import rollout_metrics
from seeker.types import StopReason, Trajectory
from seeker.weights import export_policy
from tests.fakes import MemoryObjects
from tests.learning.builders import make_config, make_group, make_policy, make_trainer

CONFIG = make_config()


def packed(trajectories: list[Trajectory]) -> Batch:
    advantages = group_advantages(trajectories, CONFIG.objective, 2)
    return decode_batch(encode_batch(pack_batch(advantages, step=0, policy_version=0, temperature=1.0)))


def without_a_turn(trajectory: Trajectory) -> Trajectory:
    spans, reason = trajectory.spans[:1], StopReason.TRAJECTORY_TOKENS
    return replace(trajectory, spans=spans, num_turns=0, stop_reason=reason, answer=None, searches=(), reward=0.0)


NOTHING = {
    "equal rewards": make_group("q1", [1, 1]) + make_group("q2", [0, 0]),
    "all void": [],
    "no turn at all": [replace(without_a_turn(each), reward=reward) for each, reward in zip(
        make_group("q1", [0, 0]), [1.0, 0.0], strict=True)],
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_learn(name: str) -> None:
    objects, trainer = MemoryObjects(), make_trainer()
    publisher = Publisher(objects, "seeker/run", CONFIG.publishing)
    first = publisher.stage(0, trainer.export())
    publisher.commit(first)
    model = make_policy()
    PolicyReader(objects).load(first, model, None)
    before = {name: bits.tobytes() for name, bits in export_policy(model).items()}
    report = trainer.update(packed(NOTHING[name]))
    assert (report.version, report.metrics["update/updates"]) == (1, 0.0)
    second = publisher.stage(1, trainer.export())
    publisher.commit(second)
    assert (second.digest, second.bytes_written, second.changed_fraction) == (first.digest, 0, 0.0)
    assert PolicyReader(objects).load(second, model, first).bytes_read == 0
    assert {name: bits.tobytes() for name, bits in export_policy(model).items()} == before
    assert all(np.isfinite(value) for value in rollout_metrics(NOTHING[name]).values())


@pytest.mark.parametrize("normalize", ["tokens", "trajectories"])
def test_a_trajectory_without_a_turn_trains_nothing(normalize: str) -> None:
    spoke, silent = make_group("q1", [1, 0])
    batch = packed([spoke, without_a_turn(silent)])
    together, alone = (make_trainer(objective={"normalize": normalize}) for _ in range(2))
    metrics = together.update(batch).metrics
    alone.update(replace(
        batch,
        token_ids=batch.token_ids[: batch.offsets[1]],
        loss_mask=batch.loss_mask[: batch.offsets[1]],
        sampler_logprobs=batch.sampler_logprobs[: batch.offsets[1]],
        offsets=batch.offsets[:2],
        advantages=batch.advantages[:1],
    ))  # fmt: skip
    assert all(np.isfinite(value) for value in metrics.values())
    ours, theirs = together.export(), alone.export()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
