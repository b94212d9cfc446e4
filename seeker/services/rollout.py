"""What a rollout executor runs: a warm policy, tokenizer and index, and one call at a time.

Any call can land in any executor, also one that was never used or holds an older version: each call names the policy
version that it wants, and brings the manifest to get it by.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from seeker.cluster.objects import ObjectStore, ServiceContext
from seeker.config import RunConfig
from seeker.engines.devices import device_for
from seeker.engines.policy import load_policy
from seeker.engines.torch_sampler import TorchSampler
from seeker.errors import PolicyError
from seeker.manifest import Manifest
from seeker.prompt import Tokenizer
from seeker.publishing import LoadReport, PolicyReader
from seeker.questions.storing import question_from_json
from seeker.retrieval.bm25 import Bm25Index
from seeker.rewards import load_reward
from seeker.rollout import run_rollout
from seeker.runs.policies import FolderObjects
from seeker.template import check_template
from seeker.tools import SearchTool, Tool
from seeker.trajectories import encode_trajectories
from seeker.types import Question, Trajectory
from seeker.weights import export_policy, load_export_

Json = dict[str, Any]


class RolloutService:
    """Trajectories for questions at a policy version, scored, as an object.

    Example: ``rollout([question], step=3, manifest=manifest, greedy=False, group_size=8)`` gives
    ``{"trajectories": handle, "report": {"wall_s": 3.1, ...}, "policy_version": 3, "digest": "9f…"}``.
    """

    def __init__(self, config: Mapping[str, Any], context: ServiceContext) -> None:
        started = time.perf_counter()
        self._config = RunConfig.model_validate(config["run"])
        self._context = context
        device = device_for(self._config.cluster.rollout_resources, "cluster.rollout_resources")
        self._model, self._tokenizer = load_policy(self._config.policy, device)
        load_export_(self._model, export_policy(self._model))  # what version 0 publishes: the bf16 values
        self._held: Manifest | None = None
        self._tool = self._open_tool(Path(config["index"]))
        self._reward = load_reward(self._config.reward)
        rollout = self._config.rollout
        self._sampler = TorchSampler(
            self._model,
            self._tokenizer,
            slots=rollout.slots,
            max_length=rollout.max_trajectory_tokens,
            temperature=rollout.temperature,
            policy_version=0,
        )
        self._set_up_s = time.perf_counter() - started

    def _open_tool(self, index: Path) -> Tool:
        """The tool behind the policy's action."""
        return SearchTool(Bm25Index.open(index), self._config.rollout.top_k, self._config.prompt.passage)

    def describe(self) -> Json:
        """What this executor holds, and whether its tokenizer reads the prompt and the spans alike."""
        return {
            "executor": self._context.executor,
            "set_up_count": self._context.set_up_count,
            "set_up_s": self._set_up_s,
            "template": check_template(self._config.prompt, cast(Tokenizer, self._tokenizer)).describe(),
            **self._holds(),
        }

    def rollout(
        self,
        questions: Sequence[Mapping[str, Any]],
        step: int,
        manifest: Json | None,
        greedy: bool,
        group_size: int,
        policy_folder: str | None = None,
    ) -> Json:
        """`group_size` scored trajectories a question.

        `manifest` names the published version to use, in the object store or, with `policy_folder`, in a run
        directory; without a manifest the starting policy is used as it was loaded.
        """
        loaded = self._hold(manifest, policy_folder)
        asked = [question_from_json(dict(question)) for question in questions]
        trajectories, report = run_rollout(
            asked,
            sampler=self._sampler,
            tool=self._tool,
            tokenizer=cast(Tokenizer, self._tokenizer),
            config=self._config.rollout,
            prompt=self._config.prompt,
            group_size=group_size,
            step=step,
            seed=self._config.seed,
            greedy=greedy,
        )
        scored = self._score(asked, trajectories, group_size)
        handle = self._context.objects.put(self._context.prefix, encode_trajectories(scored))
        return {
            "trajectories": handle.to_json(),
            "report": {**asdict(report), "load_s": 0.0 if loaded is None else loaded.seconds},
            "load_failed": None if loaded is None else loaded.failed,
            "executor": self._context.executor,
            **self._holds(),
        }

    def _score(
        self, questions: Sequence[Question], trajectories: Sequence[Trajectory], group_size: int
    ) -> list[Trajectory]:
        scored: list[Trajectory] = []
        for number, question in enumerate(questions):
            group = trajectories[number * group_size : (number + 1) * group_size]
            scored.extend(self._reward(question, group, self._config.reward))
        return scored

    def _hold(self, manifest: Json | None, policy_folder: str | None) -> LoadReport | None:
        """Make sure that the wanted version is loaded; how it was, None where it was held."""
        if manifest is None:
            if self._held is not None:
                raise PolicyError("the starting policy was asked for from an executor that holds a published version")
            return None
        wanted = Manifest.from_json(manifest)
        if self._held == wanted:
            return None
        objects, held = self._context.objects, self._held
        if policy_folder is not None:
            # A folder can only be read, which is all that a reader does; its keys are not the store's.
            objects, held = cast(ObjectStore, FolderObjects(Path(policy_folder))), None
        loaded = PolicyReader(objects).load(wanted, self._model, held)
        self._held = wanted
        self._sampler.adopt(wanted.version)
        return loaded

    def _holds(self) -> Json:
        version = 0 if self._held is None else self._held.version
        return {"policy_version": version, "digest": None if self._held is None else self._held.digest}
