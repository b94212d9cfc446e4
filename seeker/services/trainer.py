"""What a trainer executor runs: the policy being trained, addressed by step.

Every call names the step that it needs. So a call that is repeated, or that reaches a trainer which was lost and
started anew, does the right thing or fails; it never trains twice and never publishes another step's policy.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seeker.cluster.objects import ObjectHandle, ServiceContext
from seeker.config import RunConfig
from seeker.engines.devices import device_for
from seeker.engines.joined_ranks import join_ranks
from seeker.engines.meeting import Rendezvous
from seeker.engines.policy import load_policy
from seeker.engines.policy_trainer import PolicyTrainer
from seeker.engines.ranks import Ranks, SingleRank, exchange
from seeker.errors import CheckpointError, RankError, RunDirectoryError, UpdateError
from seeker.manifest import Manifest
from seeker.packing import Batch, decode_batch
from seeker.publishing import Publisher
from seeker.runs import RunDirectory, load_run, restore_points
from seeker.runs.lineages import put_aside
from seeker.runs.policies import FolderObjects, MirroredObjects
from seeker.services.checkpointing import CheckpointWriter

Json = dict[str, Any]


class TrainerService:
    """One rank of the trainers; with several, each gets the same calls and takes its slice of the batch.

    The trainer is at version n when the updates of the steps 0 .. n-1 are applied; the update of step n makes n + 1.
    All ranks are always at the same version, so that they sum the same things: they agree on it when they join, and
    one that fails goes from the others. Rank 0 alone publishes and writes checkpoints.
    """

    def __init__(self, config: Mapping[str, Any], context: ServiceContext) -> None:
        self._config = RunConfig.model_validate(config["run"])
        self._root = Path(config["run_dir"])
        self._context = context
        self._device = device_for(self._config.cluster.trainer_resources, "cluster.trainer_resources")
        self._ranks: Ranks = SingleRank()
        self._generation = ""  # of the gang that was joined
        self._trainer = self._new_trainer()
        self._reports: dict[int, Json] = {}
        self._writer = CheckpointWriter()
        self._objects = MirroredObjects(context.objects, FolderObjects(self._root / "policy"))
        self._publisher = Publisher(self._objects, context.prefix, self._config.publishing)

    def describe(self) -> Json:
        return {
            "executor": self._context.executor,
            "set_up_count": self._context.set_up_count,
            "policy_version": self._trainer.version,
        }

    def join(self, rendezvous: Json) -> Json:
        """Meet the other ranks of the gang; the version that all of them are at.

        `rendezvous` is a `Rendezvous` without its generation, which is the gang's.
        """
        gang = self._context.gang
        if gang is None:
            raise RankError("join is for a gang: start the trainers with gang=True and form them")
        self._ranks.leave("it joins another generation")
        if gang.world > 1:
            names = [f"executor {each} on {host}" for each, host in zip(gang.executors, gang.hosts, strict=True)]
            meeting = Rendezvous(**rendezvous, generation=gang.generation)
            self._ranks = join_ranks(gang.rank, names, meeting, self._device)
        self._trainer.ranks = self._ranks
        self._generation = gang.generation
        with self._together():
            self._agree()
        return {"policy_version": self._trainer.version, "rank": self._ranks.rank}

    def update(self, step: int, batch: Json) -> Json:
        """Apply the update of `step`, once: a trainer that has applied it already returns the stored report."""
        with self._together():
            if self._trainer.version == step + 1 and step in self._reports:
                return self._reports[step]
            self._reach(step)
            data = self._context.objects.get(ObjectHandle(**batch))
            return self._apply(decode_batch(data), step)

    def publish(self, version: int, committed: Json | None) -> Json:
        """Stage and verify `version`; the version before it, `committed`, becomes what deltas are taken from."""
        with self._together():
            self._reach(version)
            return {} if self._ranks.rank else self._publish(version, committed)

    def checkpoint(self, version: int, path: str) -> Json:
        """Begin to write the full trainer state at `version` to the folder `path`; updates need not wait for it."""
        with self._together():
            self._reach(version)
            if self._ranks.rank == 0:
                self._writer.begin(Path(path), *self._trainer.snapshot())
        return {"version": version, "path": path}

    def written(self, version: int, path: str, wait: bool) -> Json:
        """Whether that state is on the disk and was read back; raises what the writing failed with.

        Neither written nor being written: the trainer that was asked to is gone.
        """
        with self._together():
            if self._ranks.rank:
                return {}
            return {
                "written": self._writer.is_written(Path(path), wait),
                "writing": self._writer.is_writing(Path(path)),
            }

    def _publish(self, version: int, committed: Json | None) -> Json:
        if committed is not None:
            self._publisher.commit(Manifest.from_json(committed))
        self._objects.take_written()  # of a stage that failed
        manifest = self._publisher.stage(version, self._trainer.export())
        metrics = {"publish/bytes": manifest.bytes_written, "publish/changed_fraction": manifest.changed_fraction}
        return {"manifest": manifest.to_json(), "metrics": metrics, "objects": self._objects.take_written()}

    @contextmanager
    def _together(self) -> Generator[None]:
        """What all ranks do alike: one that fails goes from the others, who would wait for it."""
        gang = self._context.gang
        if gang is not None and gang.generation != self._generation:
            raise RankError(f"this trainer has not joined generation {gang.generation} of its gang: call join first")
        try:
            yield
        except UpdateError:  # decided by sums, so by all alike
            raise
        except BaseException as error:
            self._ranks.leave(f"{type(error).__name__}: {error}")
            raise

    def _agree(self) -> None:
        """Be in the state of the others; where they differ (some were lost), all begin anew and restore together."""
        version = self._trainer.version
        if len(set(exchange(self._ranks, 2 * version + (version - 1 in self._reports)))) > 1:
            self._trainer, self._reports = self._new_trainer(), {}

    def _reach(self, version: int) -> None:
        """Be at `version`: stay, or restore the newest checkpoint before it and replay the stored batches after."""
        if self._trainer.version == version:
            return
        run = load_run(self._root)
        held = self._trainer.version
        is_far = held > version or held < max(restore_points(run, version), default=0)
        if any(exchange(self._ranks, is_far)):
            self._restore(run, version)
        while self._trainer.version < version:
            step = self._trainer.version
            self._apply(self._stored_batch(run, step), step)

    def _restore(self, run: RunDirectory, version: int) -> None:
        """Start from the newest checkpoint that is whole for every rank, else from the starting policy.

        Below the run's floor nothing helps: its batches were made under other settings.
        """
        found = exchange(self._ranks, self._load_newest(run, version))
        while min(found) != max(found):
            found = exchange(self._ranks, self._load_newest(run, min(found)))
        if found[0] < 0:
            raise CheckpointError(
                f"{run.root}: no whole checkpoint from version {run.floor} to {version}, where this lineage begins; "
                "restore one from a copy, or fork from an earlier step"
            )

    def _load_newest(self, run: RunDirectory, version: int) -> int:
        """The version that was loaded: the newest up to `version` that is whole here; -1 where none is."""
        self._trainer = self._new_trainer()
        for found in restore_points(run, version):
            try:
                if found:
                    self._trainer.load_checkpoint(run.checkpoint_path(found))
                return found
            except CheckpointError as error:
                if self._ranks.rank == 0:
                    run.events.record("checkpoint_damaged", version=found, error=str(error))
                    put_aside(run.root, f"checkpoints/{found:06d}", f"damaged/{run.lineage:03d}")
        return -1

    def _apply(self, batch: Batch, step: int) -> Json:
        if batch.step != step:
            raise RunDirectoryError(f"the batch of step {batch.step} was given for the update of step {step}")
        waited_s = self._ranks.waited_s
        report = self._trainer.update(batch).to_json()
        self._reports = {step: {**report, "waited_s": self._ranks.waited_s - waited_s}}
        return self._reports[step]

    def _stored_batch(self, run: RunDirectory, step: int) -> Batch:
        path = self._root / run.step_path(step) / "batch.bin"
        if not path.is_file():
            raise RunDirectoryError(
                f"{path}: missing; without it and without a later checkpoint, policy version {step + 1} cannot be "
                "rebuilt. Start a new run"
            )
        return decode_batch(path.read_bytes())

    def _new_trainer(self) -> PolicyTrainer:
        model, _ = load_policy(self._config.policy, self._device)
        needs_reference = self._config.objective.kl_coefficient > 0.0
        reference = load_policy(self._config.policy, self._device)[0] if needs_reference else None
        return PolicyTrainer(self._config, model, reference=reference, ranks=self._ranks)
