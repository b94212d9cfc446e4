"""Services that answer at once with what they were made with: what is measured is the driver alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from seeker.cluster.objects import ServiceContext
from seeker.rollout import RolloutReport
from seeker.trajectories import encode_trajectories
from seeker.types import Author, Span, StopReason, Trajectory

Json = dict[str, Any]
NUM_PROMPT, NUM_SAMPLED = 120, 30  # tokens


class CannedRollouts:
    """Every other trajectory of a group is right."""

    def __init__(self, config: Mapping[str, Any], context: ServiceContext) -> None:
        self._context = context

    def describe(self) -> Json:
        return {"template": "canned"}

    def rollout(
        self, questions: Sequence[Mapping[str, Any]], step: int, manifest: Json, greedy: bool, group_size: int, **_: Any
    ) -> Json:
        told = [_trajectory(question["id"], step, index) for question in questions for index in range(group_size)]
        handle = self._context.objects.put(self._context.prefix, encode_trajectories(told))
        return {
            "trajectories": handle.to_json(),
            "report": {**asdict(RolloutReport(1, 1, 1, 0, 0.1, 0.1, 0.1)), "load_s": 0.0},
            "load_failed": None,
            "executor": self._context.executor,
            "policy_version": manifest["version"],
            "digest": manifest["digest"],
        }


class CannedTrainer:
    """Is at whatever version it is asked for."""

    def __init__(self, config: Mapping[str, Any], context: ServiceContext) -> None:
        pass

    def join(self, rendezvous: Json) -> Json:
        return {}

    def update(self, step: int, batch: Json) -> Json:
        return {"metrics": {f"update/{number}": step / (number + 1) for number in range(20)}, "waited_s": 0.0}

    def publish(self, version: int, committed: Json | None) -> Json:
        shard = {"key": "key", "endpoint": "grpc://127.0.0.1:1", "base_version": 1, "patches": [[2, version]]}
        told = {"version": version, "digest": f"{version:032x}", "shards": [shard], "num_values": 1}
        return {"manifest": told, "metrics": {"publish/bytes": 1, "publish/changed_fraction": 0.1}, "objects": []}

    def checkpoint(self, version: int, path: str) -> Json:
        return {"version": version, "path": path}

    def written(self, version: int, path: str, wait: bool) -> Json:
        return {"written": True, "writing": False}


def _trajectory(question: str, step: int, index: int) -> Trajectory:
    right = float(index % 2)
    return Trajectory(
        question_id=question,
        group_id=f"{step:06d}/{question}",
        index=index,
        spans=(
            Span(Author.USER, np.arange(NUM_PROMPT, dtype=np.int32)),
            Span(Author.POLICY, np.arange(NUM_SAMPLED, dtype=np.int32), np.full(NUM_SAMPLED, -1.0, np.float32), step),
        ),
        stop_reason=StopReason.ANSWERED,
        num_turns=1,
        num_malformed=0,
        num_forged_observations=0,
        answer="an answer",
        reward=right,
        reward_terms={"exact_match": right, "f1": right, "containment": right, "format": 1.0},
    )
