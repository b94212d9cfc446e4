"""The services, in this process, with objects in memory.

1. A rollout call repeated, also in another executor, gives the same bytes; it says which version and digest it used.
2. An executor loads what a call wants: newer, older, by delta or whole; from a run directory as from the store.
3. The trainer is addressed by step: an update repeated returns the stored report and trains nothing.
4. A trainer that is new, behind or ahead reaches the wanted version by checkpoint and stored batches: the same policy.
5. A damaged checkpoint is passed over for an older one, told, and put aside.
6. A missing batch is an error that names it.
7. Trainer ranks agree when they join, whatever each still holds; rank 0 alone publishes and writes checkpoints; a rank
   that fails alone is named by the others at once; a call before joining is refused.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seeker.advantages import group_advantages
from seeker.cluster.objects import GangMembership, ObjectHandle, ServiceContext
from seeker.config import ClusterConfig, IndexConfig
from seeker.errors import ObjectMissingError, RankError, RunDirectoryError
from seeker.manifest import Manifest
from seeker.packing import encode_batch, pack_batch
from seeker.retrieval.bm25 import build_index
from seeker.runs import RunDirectory, open_run
from seeker.services.rollout import RolloutService
from seeker.services.trainer import TrainerService
from seeker.trajectories import decode_trajectories
from seeker.types import Document, Question
from tasks.trainers import rendezvous
from tests.fakes import MemoryObjects
from tests.flows.tiny_run import FILMS, tiny_config

QUESTIONS = [asdict(Question(f"q{number}", f"Who directed {film}?", (film,))) for number, film in enumerate(FILMS[:3])]


class World:
    """One run directory, one object store, and as many executors as asked for."""

    def __init__(self, folder: Path) -> None:
        self.config = tiny_config(folder)
        root = folder / "run"
        root.mkdir(exist_ok=True)
        self.run: RunDirectory = open_run(root, self.config, "tiny")
        self.objects = MemoryObjects()
        self.index = build_index([Document("d1", "Ama", "Ama is a film.")], IndexConfig(), folder / "index")
        self.manifests: list[dict[str, Any]] = []

    def rollouts(self) -> RolloutService:
        settings = {"run": self.config.model_dump(mode="json"), "index": str(self.index)}
        return RolloutService(settings, ServiceContext(self.objects, "app/rollout", "executor-1", 1))

    def trainer(self) -> TrainerService:
        settings = {"run": self.config.model_dump(mode="json"), "run_dir": str(self.run.root)}
        return TrainerService(settings, ServiceContext(self.objects, "app/trainer", "executor-2", 1))

    def ranks(self, world: int) -> Ranks:
        settings = {"run": self.config.model_dump(mode="json"), "run_dir": str(self.run.root)}
        contexts = [ServiceContext(self.objects, "app/trainer", f"executor-{rank}", 1) for rank in range(world)]
        return Ranks([TrainerService(settings, context) for context in contexts], contexts)

    def train(self, trainer: TrainerService, rollouts: RolloutService, steps: int) -> None:
        """Steps as the flow does them, batches stored in the run directory, every version published."""
        self.manifests = [trainer.publish(0, None)["manifest"]]
        for step in range(steps):
            told = rollouts.rollout(QUESTIONS, step, self.manifests[-1], False, 3)
            trajectories = decode_trajectories(self.read(told))
            batch = pack_batch(
                group_advantages(trajectories, self.config.objective), step=step, policy_version=step, temperature=1.0
            )
            path = self.run.root / self.run.step_path(step) / "batch.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_batch(batch))
            trainer.update(step, self.batch(step))
            self.manifests.append(trainer.publish(step + 1, self.manifests[-1])["manifest"])

    def batch(self, step: int) -> dict[str, Any]:
        data = (self.run.root / self.run.step_path(step) / "batch.bin").read_bytes()
        return asdict(self.objects.put("app/trainer", data))

    def read(self, told: dict[str, Any]) -> bytes:
        return bytes(self.objects.get(ObjectHandle(**told["trajectories"])))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three trained steps, with checkpoints at the versions 1 and 2."""
    made = World(tmp_path_factory.mktemp("world"))
    trainer = made.trainer()
    made.train(trainer, made.rollouts(), 3)
    for version in (1, 2):
        trainer.checkpoint(version, str(made.run.checkpoint_path(version)))
    return made


def test_a_rollout_call_repeated_gives_the_same_bytes(world: World) -> None:
    first, other = world.rollouts(), world.rollouts()
    manifest = world.manifests[0]
    told = [service.rollout(QUESTIONS, 0, manifest, False, 3) for service in (first, first, other)]
    assert len({world.read(each) for each in told}) == 1
    assert (told[0]["policy_version"], told[0]["digest"]) == (0, manifest["digest"])
    assert set(told[0]["report"]) >= {"generated_tokens", "prefilled_tokens", "sampler_s", "wall_s", "load_s"}
    assert world.read(first.rollout(QUESTIONS, 1, manifest, False, 3)) != world.read(told[0])


def test_the_starting_policy_as_loaded_is_version_0(world: World) -> None:
    told = world.rollouts().rollout(QUESTIONS, 0, None, True, 1)
    published = world.rollouts().rollout(QUESTIONS, 0, world.manifests[0], True, 1)
    assert world.read(told) == world.read(published)


def test_an_executor_loads_what_the_call_wants(world: World) -> None:
    stepwise = world.rollouts()
    folder = str(world.run.policy_folder)
    for version in (1, 2, 0, 3):
        manifest = world.manifests[version]
        told = stepwise.rollout(QUESTIONS, version, manifest, True, 1)
        fresh = world.rollouts().rollout(QUESTIONS, version, manifest, True, 1)
        stored = world.rollouts().rollout(QUESTIONS, version, manifest, True, 1, policy_folder=folder)
        assert world.read(told) == world.read(fresh) == world.read(stored)
        assert told["digest"] == fresh["digest"] == stored["digest"] == manifest["digest"]


def test_an_executor_with_damaged_weights_loads_the_anchor_and_says_so(world: World) -> None:
    manifests = [Manifest.from_json(manifest) for manifest in world.manifests]
    version = next(number for number in (1, 2, 3) if manifests[number].continues(manifests[number - 1]))
    executor = world.rollouts()
    executor.rollout(QUESTIONS, version - 1, world.manifests[version - 1], True, 1)
    with torch.no_grad():
        next(executor._model.parameters()).add_(1.0)
    told = executor.rollout(QUESTIONS, version, world.manifests[version], True, 1)
    fresh = world.rollouts().rollout(QUESTIONS, version, world.manifests[version], True, 1)
    assert world.read(told) == world.read(fresh)
    assert "digest" in told["load_failed"]
    assert fresh["load_failed"] is None


def test_versions_differ_and_are_published_as_deltas_where_that_is_smaller(world: World) -> None:
    assert len({manifest["digest"] for manifest in world.manifests}) == 4
    assert [manifest["anchor_version"] for manifest in world.manifests] == [0, 0, 0, 0]


def test_an_update_repeated_trains_nothing(world: World) -> None:
    trainer = world.trainer()
    first = trainer.update(0, world.batch(0))
    again = trainer.update(0, world.batch(0))
    assert again == first
    assert trainer.describe()["policy_version"] == 1
    assert trainer.publish(1, None)["manifest"]["digest"] == world.manifests[1]["digest"]


@pytest.mark.parametrize("path", [[3], [1, 3], [3, 1], [0, 2, 1, 3], [3, 0]])
def test_a_trainer_reaches_any_version_from_anywhere(world: World, path: list[int]) -> None:
    trainer = world.trainer()
    for version in path:
        digest = trainer.publish(version, None)["manifest"]["digest"]
        assert digest == world.manifests[version]["digest"]


def test_an_update_asked_of_a_new_trainer_is_the_same_update(world: World) -> None:
    trainer = world.trainer()
    report = trainer.update(2, world.batch(2))
    assert report["version"] == 3
    assert np.isfinite(report["metrics"]["update/grad_norm"])
    assert trainer.publish(3, None)["manifest"]["digest"] == world.manifests[3]["digest"]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    made = World(tmp_path)
    trainer = made.trainer()
    made.train(trainer, made.rollouts(), 2)
    for version in (1, 2):
        path = str(made.run.checkpoint_path(version))
        trainer.checkpoint(version, path)
        assert trainer.written(version, path, True)["written"]
    state = next(made.run.checkpoint_path(2).glob("*.safetensors"))
    state.write_bytes(state.read_bytes()[:-8])
    assert made.trainer().publish(2, None)["manifest"]["digest"] == made.manifests[2]["digest"]
    assert [event["version"] for event in made.run.events.read()] == [2]
    assert (made.run.root / "damaged/000/checkpoints/000002").is_dir()
    assert not made.run.checkpoint_path(2).exists()  # so that the loop writes it again
    (made.run.root / made.run.step_path(1) / "batch.bin").unlink()
    with pytest.raises(RunDirectoryError, match=r"steps/000001/batch\.bin: missing"):
        made.trainer().publish(2, None)


@dataclass
class Ranks:
    """Trainer services that sum with each other, each call in a thread of its own."""

    services: list[TrainerService]
    contexts: list[ServiceContext]
    generation: int = 0

    def join(self) -> list[Any]:
        self.generation += 1
        world = len(self.services)
        names = tuple(context.executor for context in self.contexts)
        for rank, context in enumerate(self.contexts):
            context.gang = GangMembership(f"generation-{self.generation}", rank, world, names, ("here",) * world)
        settings = ClusterConfig(start_deadline_s=30.0, rank_deadline_s=60.0)
        return self.call("join", rendezvous(("here",) * world, settings))

    def call(self, method: str, *args: Any) -> list[Any]:
        """Results in the order of the ranks; an exception stands for itself."""

        def one(service: TrainerService) -> Any:
            try:
                return getattr(service, method)(*args)
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(self.services)) as threads:
            return list(threads.map(one, self.services))

    def replace(self, rank: int, fresh: Ranks) -> None:
        """The service of a new process in the place of a lost one."""
        self.services[rank], self.contexts[rank] = fresh.services[rank], fresh.contexts[rank]


def test_ranks_agree_whatever_each_still_holds(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.train(world.trainer(), world.rollouts(), 2)  # its checkpoints would be those of one rank
    ranks = world.ranks(2)
    assert [each["policy_version"] for each in ranks.join()] == [0, 0]
    reports = [ranks.call("update", step, world.batch(step)) for step in (0, 1)]
    assert all(first["metrics"] == second["metrics"] for first, second in reports)
    first, second = ranks.call("publish", 2, None)
    assert second == {}
    ranks.replace(1, world.ranks(2))
    assert [each["policy_version"] for each in ranks.join()] == [0, 0]
    assert [each["metrics"] for each in ranks.call("update", 1, world.batch(1))] == [
        each["metrics"] for each in reports[1]
    ]
    again, _ = ranks.call("publish", 2, None)
    assert again["manifest"]["digest"] == first["manifest"]["digest"]
    assert ranks.call("update", 1, world.batch(1))[0]["metrics"] == reports[1][0]["metrics"]  # stored, not trained


def test_rank_0_alone_writes_checkpoints(tmp_path: Path) -> None:
    made = World(tmp_path)
    ranks = made.ranks(2)
    ranks.join()
    path = made.run.checkpoint_path(0)
    assert ranks.call("checkpoint", 0, str(path)) == [{"version": 0, "path": str(path)}] * 2
    assert ranks.call("written", 0, str(path), True) == [{"written": True, "writing": False}, {}]
    assert path.is_dir()


def test_a_rank_that_fails_alone_is_named_and_a_call_before_joining_refused(world: World) -> None:
    ranks = world.ranks(2)
    ranks.join()
    ranks.contexts[1].objects = MemoryObjects()  # rank 1 cannot read the batch
    survivor, failed = ranks.call("update", 0, world.batch(0))
    assert isinstance(failed, ObjectMissingError)
    assert isinstance(survivor, RankError)
    assert "rank 1 (executor executor-1 on here) left: ObjectMissingError" in str(survivor)
    ranks.generation += 1
    ranks.contexts[0].gang = replace(ranks.contexts[0].gang, generation="another")  # type: ignore[type-var]
    with pytest.raises(RankError, match="has not joined generation another"):
        ranks.services[0].publish(0, None)
    ranks.contexts[1].objects = world.objects
    ranks.join()
    first, second = ranks.call("update", 0, world.batch(0))
    assert first["metrics"] == second["metrics"]
