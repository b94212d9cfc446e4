"""The training run on a cluster that was started separately, and on one with the faults of a real one (drills).

1. `seeker cluster start --env` gives the exports by which the same run works there unchanged: the metrics of every
   step, the evaluations and the policy are those of the run on its own embedded cluster.
2. With the real engine's faults, while the run's service processes and some of their executors are killed at random
   moments and another client opens and closes sessions beside it: the same. Afterwards the cluster still gives a new
   client its executor.

The preset `micro`, with two trainers; `make drill` also does it with one, and with more steps and kills than CI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.train import train
from seeker.cluster import shared
from seeker.cluster.client import ClusterSettings, open_cluster
from seeker.presets import load_config
from seeker.runs import load_run, read_metrics
from tests.cluster.disturbing import Neighbour
from tests.flows.attack import Attacker
from tests.flows.whole import outcome

LONG = int(os.environ.get("SEEKER_DRILL_ROUNDS", "20")) > 20
STEPS, KILLS, TRAINERS = (12, 20, (1, 2)) if LONG else (4, 4, (2,))
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.drill, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _no_named_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", params=TRAINERS)
def trainers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def undisturbed(trainers: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to on the cluster that it starts itself."""
    return outcome(run_in(tmp_path_factory.mktemp("embedded") / "run", trainers))


def run_in(root: Path, trainers: int) -> Path:
    """The flow as a user names it; a new run directory."""
    flags = {"steps": STEPS, "trainers": trainers, "out": str(root)}
    config = load_config("micro", ["checkpoint.every=2", "cluster.start_deadline_s=240"], **flags)
    start = time.monotonic()
    train(config=config, run_id="shared")
    print(f"\n{STEPS} steps with {trainers} trainers: {time.monotonic() - start:.0f} s")
    return root


@contextmanager
def started_cluster(directory: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Iterator[shared.SharedState]:
    """`seeker cluster start --env`, its exports in our environment."""
    line = [sys.executable, "-m", "flows.cli", "cluster", "start", "--env", "--dir", str(directory), *flags]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for export in done.stdout.splitlines():
        name, _, value = export.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)
    try:
        state = shared.running_state(directory)
        assert state is not None
        yield state
    finally:
        shared.stop_shared(directory)


def test_a_cluster_that_was_started_separately(
    trainers: int, undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started_cluster(tmp_path / "cluster", monkeypatch) as state:
        root = run_in(tmp_path / "run", trainers)
        assert load_run(root).describe()["cluster"]["endpoint"] == state.address.endpoint
    assert outcome(root) == undisturbed
    assert [row["policy_version"] for row in read_metrics(root)] == list(range(STEPS + 1))


def test_kills_under_the_engines_faults(
    trainers: int, undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--faults", "engine", "--slots", "64", "--memory", "128g")
    root = tmp_path / "run"
    with started_cluster(tmp_path / "cluster", monkeypatch, *flags) as state:
        with Attacker(root, state.pid, KILLS, STEPS, seed=trainers) as attacker, Neighbour(ClusterSettings()) as beside:
            run_in(root, trainers)
        print(f"killed {attacker.killed}; {beside.num_visits} visits beside")
        with open_cluster(ClusterSettings(run_id="after")) as fresh:
            service = fresh.start("after", "tests.cluster.services:Echo", {}, "mem=64m")
            assert service.call("echo", 7, deadline_s=30).result() == 7
    assert len(attacker.killed) == KILLS
    assert beside.num_visits > 0
    assert outcome(root) == undisturbed
