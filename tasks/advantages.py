"""The advantage phase, in the driver: trajectories of the step -> the batch of its update, in the run directory."""

from __future__ import annotations

import time
from collections.abc import Sequence

from seeker.advantages import group_advantages, shuffle_rewards
from seeker.packing import encode_batch, pack_batch
from seeker.runs import FileRef, Json, RunDirectory, read_file, write_file
from seeker.statistics import rollout_metrics
from seeker.trajectories import decode_trajectories
from seeker.types import Trajectory
from tasks.cluster import Session, current_session
from tasks.naming import phase_task


@phase_task("advantage")
def advantage(run_key: str, lineage: int, step: int, rollouts: Json) -> Json:
    """The step's batch: ``{"batch": file reference, "metrics": {...}}``."""
    return compute_advantages(current_session(), step, rollouts)


def compute_advantages(session: Session, step: int, rollouts: Json) -> Json:
    started = time.perf_counter()
    config, run = session.config, session.run
    trajectories = read_trajectories(run, [FileRef.from_json(call) for call in rollouts["calls"]])
    metrics = rollout_metrics(trajectories)
    if config.reward.shuffle:
        trajectories = shuffle_rewards(trajectories, [config.seed, step])
    advantages = group_advantages(trajectories, config.objective, config.rollout.group_size)
    batch = pack_batch(advantages, step=step, policy_version=step, temperature=config.rollout.temperature)
    ref = write_file(run.root, f"{run.step_path(step)}/batch.bin", encode_batch(batch))
    return {
        "batch": ref.to_json(),
        "metrics": {
            **metrics,
            "groups/kept": advantages.num_groups_kept,
            "groups/dropped": advantages.num_groups_dropped,
            "groups/void": rollouts["num_void"],
        },
        "seconds": time.perf_counter() - started,
    }


def read_trajectories(run: RunDirectory, refs: Sequence[FileRef]) -> list[Trajectory]:
    """The trajectories of several calls, in order; a damaged file is an error."""
    return [trajectory for ref in refs for trajectory in decode_trajectories(read_file(run.root, ref))]
