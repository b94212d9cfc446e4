"""How a configuration reaches the cluster: which one, which services, and where trainer ranks meet.

1. The cluster is named by endpoint or by context, never by both; connecting has a deadline of its own.
2. Rollout executors grow up to `rollouts_max` where it is set; the trainers are one gang.
3. Ranks on one machine meet on its loopback device, on several at rank 0's; ports that are taken are passed over.
4. Ranks that report different metrics are an error; the longest wait is told once.
5. A training that the embedded cluster can never hold is refused; a named cluster's nodes decide.
6. Room for the gang that never comes ends the run with a clear error, at once and without another try.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from seeker.config import ClusterConfig
from seeker.errors import CallError, ClusterError, ConfigError, DeadlineError, LostStepError
from seeker.runs import RunDirectory
from tasks.cluster import check_room, cluster_settings, start_rollouts, start_trainers
from tasks.trainers import Trainers, choose_port, rendezvous
from tasks.updates import reported_once
from tests.flows.runs import small_config, start_run


@dataclass
class Recorder:
    """A cluster, and a service of it, that note what they were asked for."""

    error: Exception | None = None
    started: dict[str, Any] = field(default_factory=dict)
    prefix: str = "app/session"
    num_forms: int = 0

    def start(self, name: str, **settings: Any) -> Recorder:
        self.started = {"name": name, **settings}
        return self

    def form(self, deadline_s: float) -> Any:
        self.num_forms += 1
        assert self.error is not None
        raise self.error


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return start_run(tmp_path / "run")


def test_a_cluster_is_named_once(tmp_path: Path) -> None:
    config = small_config(cluster={"context": "lab", "connect_deadline_s": 4.0})
    settings = cluster_settings(config, tmp_path / "run" / "logs")
    assert (settings.context, settings.endpoint, settings.connect_deadline_s) == ("lab", None, 4.0)
    assert settings.run_id == "run"
    assert cluster_settings(small_config(), tmp_path).connect_deadline_s == 10.0
    with pytest.raises(ValueError, match=r"either cluster\.context or cluster\.endpoint"):
        small_config(cluster={"context": "lab", "endpoint": "http://lab:8080"})


def test_too_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAME_ENDPOINT", raising=False)
    monkeypatch.delenv("SEEKER_CLUSTER_CONTEXT", raising=False)
    small = {"slots": 3, "rollouts": 2, "trainers": 2}
    with pytest.raises(ConfigError, match=r"cluster\.slots: 3; 2 rollout executors of cpu=1 and 2 trainers .* need 4"):
        check_room(small_config(cluster=small))
    check_room(small_config(cluster={**small, "slots": 4}))
    check_room(small_config(cluster={**small, "endpoint": "http://lab:8080"}))


def test_rollouts_grow_where_a_maximum_is_set(tmp_path: Path) -> None:
    cluster: Any = Recorder()
    start_rollouts(cluster, small_config(), tmp_path, "rollout-a run")
    assert cluster.started["name"] == "rollout-a-run"  # a directory's name, where a service's has no blanks
    assert [cluster.started[name] for name in ("executors", "elastic", "max_executors")] == [2, False, None]
    start_rollouts(cluster, small_config(cluster={"rollouts": 1, "rollouts_max": 4}), tmp_path, "rollout")
    assert [cluster.started[name] for name in ("executors", "elastic", "max_executors")] == [1, True, 4]
    with pytest.raises(ValueError, match=r"rollouts_max is 1, below cluster\.rollouts \(2\)"):
        small_config(cluster={"rollouts": 2, "rollouts_max": 1})


def test_trainers_are_one_gang(tmp_path: Path) -> None:
    cluster: Any = Recorder()
    start_trainers(cluster, start_run(tmp_path / "run", cluster={"trainers": 3, "trainer_threads": 1}), "trainer")
    assert (cluster.started["executors"], cluster.started["gang"]) == (3, True)
    assert cluster.started["env"]["OMP_NUM_THREADS"] == "1"


def test_where_ranks_meet() -> None:
    config = ClusterConfig(start_deadline_s=100.0, rank_deadline_s=7.0)
    assert rendezvous(("node-a", "node-a"), config)["address"] == "127.0.0.1"
    told = rendezvous(("node-b", "node-a"), config)
    assert told["address"] == "node-b"
    assert (told["join_deadline_s"], told["sum_deadline_s"]) == (95.0, 7.0)


def test_taken_ports_are_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert choose_port(range(taken - 50, taken + 50)) != taken
        with pytest.raises(ClusterError, match=f"no port from {taken} to {taken + 1} is free"):
            choose_port(range(taken, taken + 1))


def test_metrics_are_reported_once() -> None:
    reports = [{"metrics": {"update/loss": 0.5}, "waited_s": waited} for waited in (0.1, 0.3)]
    assert reported_once(reports, 3) == {"update/loss": 0.5, "seconds/update_waiting": 0.3}
    assert reported_once(reports[:1], 3) == {"update/loss": 0.5}
    with pytest.raises(ClusterError, match="step 3: the trainer ranks report different metrics"):
        reported_once([reports[0], {"metrics": {"update/loss": 0.6}, "waited_s": 0.0}], 3)


def test_no_room_for_the_gang_is_told_at_once(run: RunDirectory) -> None:
    service: Any = Recorder(DeadlineError("gang trainer: 1 of 2 members came within 120 s"))
    with pytest.raises(LostStepError, match=r"could not be started: .*1 of 2 members came.*goes on from its last"):
        Trainers(service, run.config.cluster, run.events).run("publish", 0, None)
    assert service.num_forms == 1


def test_an_error_of_ours_is_not_tried_again(run: RunDirectory) -> None:
    service: Any = Recorder(CallError("setting up trainer: no such policy", "PolicyError"))
    with pytest.raises(CallError, match="no such policy"):
        Trainers(service, run.config.cluster, run.events).run("publish", 0, None)
    assert service.num_forms == 1
    assert run.events.read() == []


def test_what_the_machine_did_is_tried_again_and_told(run: RunDirectory) -> None:
    service: Any = Recorder(ClusterError("executor lost"))
    with pytest.raises(LostStepError, match="the trainers were lost 3 times in 'publish'"):
        Trainers(service, run.config.cluster, run.events).run("publish", 0, None)
    assert service.num_forms == 3
    assert [event["attempt"] for event in run.events.read()] == [1, 2, 3]
