"""The cluster, its services and the run that is being written, for as long as a flow needs them.

These live in the process of the flow and are never a task's result: tasks find them through `current_session`.
A flow inside another (train inside pipeline) uses the cluster that is open already.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seeker.cluster.client import Call, Cluster, Service, open_cluster
from seeker.cluster.lease import plain_name
from seeker.cluster.reaching import check_reachable
from seeker.cluster.resources import parse_resources
from seeker.cluster.settings import ClusterSettings
from seeker.config import RunConfig
from seeker.errors import ClusterError, ConfigError, InfrastructureError
from seeker.presets import locate
from seeker.runs import Json, RunDirectory
from seeker.types import Question
from tasks.trainers import PendingWork, Trainers

ROLLOUT_SERVICE = "seeker.services.rollout:RolloutService"
TRAINER_SERVICE = "seeker.services.trainer:TrainerService"

_clusters: list[Cluster] = []
_sessions: list[Session] = []


@dataclass
class PendingCheckpoint:
    """A full trainer state that was asked for and is not known to be on the disk."""

    version: int
    path: str
    copying: PendingWork | None  # the state in the trainer's memory; None when that is done

    def await_copy(self) -> None:
        if self.copying is not None:
            self.copying.result()
            self.copying = None


@dataclass
class Session:
    """What the tasks of one training run work with."""

    run: RunDirectory
    cluster: Cluster
    rollouts: Service
    trainers: Trainers
    train_questions: list[Question]
    heldout_questions: list[Question]
    policy: Json | None = None  # manifest of the committed policy version, in the live object store
    step_started: float = 0.0  # perf_counter; includes what the task before it cost after its commit
    pending: list[PendingCheckpoint] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        return self.run.config


@contextmanager
def open_flow_cluster(config: RunConfig, log_dir: Path) -> Generator[Cluster]:
    """The cluster of this flow: the one that an outer flow has open, else the named one, else an embedded one."""
    if _clusters:
        yield _clusters[-1]
        return
    with open_cluster(cluster_settings(config, log_dir)) as cluster, use_cluster(cluster):
        try:
            yield cluster
        except InfrastructureError as error:  # most often of its object cache, which cannot be reached
            if ended := cluster.how_it_ended():
                raise ClusterError(f"{ended}\nStart the run again: it goes on from its last commit.") from error
            raise


@contextmanager
def use_cluster(cluster: Cluster) -> Generator[None]:
    """Let the flows inside find `cluster`."""
    _clusters.append(cluster)
    try:
        yield
    finally:
        _clusters.remove(cluster)


@contextmanager
def use_session(session: Session) -> Generator[Session]:
    """Let the tasks inside find `session`; their services are closed at its end."""
    _sessions.append(session)
    try:
        yield session
    finally:
        _sessions.remove(session)


def current_session() -> Session:
    if not _sessions:
        raise ConfigError("no training session is open: this task runs inside the flow `train` only")
    return _sessions[-1]


def cluster_settings(config: RunConfig, log_dir: Path) -> ClusterSettings:
    """Where the cluster is: the configuration, else the environment (FLAME_ENDPOINT), else embedded."""
    cluster = config.cluster
    return ClusterSettings(
        endpoint=cluster.endpoint,
        cache_endpoint=cluster.cache_endpoint,
        context=cluster.context,
        python=cluster.python,
        slots=cluster.slots,
        log_dir=str(log_dir.resolve()),
        connect_deadline_s=cluster.connect_deadline_s,
        run_id=log_dir.parent.name,
    )


def check_cluster(config: RunConfig) -> None:
    """Refuse a cluster that does not answer, or can never hold the training: before anything is prepared or started."""
    if not _clusters:
        check_room(config)
        check_reachable(cluster_settings(config, Path("run/logs")))


def check_room(config: RunConfig) -> None:
    """Refuse a training that the embedded cluster can never hold, before anything is prepared or started."""
    cluster = config.cluster
    if cluster_settings(config, Path("run/logs")).address() is not None:
        return  # the cluster's own nodes decide
    rollout, trainer = parse_resources(cluster.rollout_resources), parse_resources(cluster.trainer_resources)
    wanted = cluster.rollouts * rollout.cpu + cluster.trainers * trainer.cpu
    if wanted > cluster.slots:
        raise ConfigError(
            f"cluster.slots: {cluster.slots}; {cluster.rollouts} rollout executors of cpu={rollout.cpu} and "
            f"{cluster.trainers} trainers of cpu={trainer.cpu} need {wanted} at once; raise cluster.slots, or lower "
            "cluster.rollouts or cluster.trainers"
        )


def start_rollouts(
    cluster: Cluster, config: RunConfig, index: Path, name: str, target: str = ROLLOUT_SERVICE
) -> Service:
    """The rollout executors: each holds the policy, the tokenizer and the index."""
    return cluster.start(
        plain_name(name),
        target=target,
        config={"run": _for_executors(config), "index": str(index)},
        resources=config.cluster.rollout_resources,
        executors=config.cluster.rollouts,
        elastic=config.cluster.rollouts_max is not None,
        max_executors=config.cluster.rollouts_max,
        release_s=config.cluster.rollout_release_s,
        env=_threads(config.cluster.rollout_threads),
    )


def describe_rollouts(rollouts: Service, deadline_s: float) -> Call:
    """What an executor holds; the call also makes it load."""
    return rollouts.call("describe", deadline_s=deadline_s, idempotent=True)


def check_rollouts(rollouts: Service, deadline_s: float) -> None:
    """Raises `InfrastructureError` when no executor is free by the deadline that can load what rollouts need."""
    describe_rollouts(rollouts, deadline_s).result()


def start_trainers(cluster: Cluster, run: RunDirectory, name: str, target: str = TRAINER_SERVICE) -> Trainers:
    """The trainers: one gang, all executors or none."""
    settings = run.config.cluster
    service = cluster.start(
        plain_name(name),
        target=target,
        config={"run": _for_executors(run.config), "run_dir": str(run.root.resolve())},
        resources=settings.trainer_resources,
        executors=settings.trainers,
        gang=True,
        release_s=settings.trainer_release_s,
        env=_threads(settings.trainer_threads),
    )
    return Trainers(service, settings, run.events)


def _for_executors(config: RunConfig) -> Json:
    """The configuration as JSON, with a policy of the project named by its whole path.

    An executor whose code was sent to it stands in another folder.
    """
    path = locate(config.policy.path)
    found = str(Path(path).resolve()) if Path(path).is_dir() else path
    policy = config.policy.model_copy(update={"path": found})
    return config.model_copy(update={"policy": policy}).model_dump(mode="json")


def _threads(number: int) -> dict[str, str]:
    """Thread counts by environment: two OpenMP pools on two cores cost five times the step."""
    return {
        "OMP_NUM_THREADS": str(number),
        "MKL_NUM_THREADS": str(number),
        "OPENBLAS_NUM_THREADS": str(number),
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
