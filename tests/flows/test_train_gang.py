"""The training flow with two trainers on the embedded cluster: a gang of real processes.

1. Every step is committed, with the metrics that one trainer reports but for rounding, and nothing is lost on the way.
2. A rank that is killed in the middle of the run, at any moment: the gang is formed again, and the run's metrics,
   evaluations and policy are those of an undisturbed run of two ranks (drill).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.prepare import prepare
from flows.train import train
from seeker.runs import load_run, read_latest, read_metrics
from tests.cluster.conftest import descendants
from tests.flows.tiny_run import tiny_config
from tests.flows.whole import copy_inputs, outcome

LONG = int(os.environ.get("SEEKER_DRILL_ROUNDS", "20")) > 20  # more than CI has time for

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(600)]

CLUSTER = {"trainers": 2, "trainer_threads": 1, "rollouts": 1, "start_deadline_s": 240}


def train_with_two(inputs: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    copy_inputs(inputs, folder)
    config = tiny_config(folder, cluster=CLUSTER, **changes)
    prepared = prepare(config=config, root=str(folder / "prepared"))
    return Path(train(config=config, run_id="gang", prepared=prepared)["run"])


def test_two_trainers_make_the_run_of_one(uninterrupted: Path, tmp_path: Path) -> None:
    root = train_with_two(uninterrupted.parent, tmp_path / "two")
    run = load_run(root)
    latest = read_latest(run)
    assert latest is not None
    assert latest.policy_version == 2
    assert run.events.count("trainers_lost") == 0
    assert len(list((root / "logs").glob("trainer-*.log"))) == 2
    row, expected = (read_metrics(each)[1] for each in (root, uninterrupted))
    assert row["seconds/update_waiting"] >= 0.0
    for name in ("update/loss", "update/grad_norm", "update/entropy", "mismatch/max", "tis/effective_sample_size"):
        assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5)


class Killer:
    """Kills a trainer process some time after a step's batch is there, once for each of the steps."""

    def __init__(self, root: Path, steps: list[int], seed: int) -> None:
        self.killed: list[int] = []
        self._root = root
        self._steps = steps
        self._draw = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        for step in self._steps:
            while not (self._root / "steps" / f"{step:06d}" / "batch.bin").is_file():
                if self._over.wait(0.002):
                    return
            time.sleep(self._draw.uniform(0.0, 0.5))
            os.kill(self._draw.choice(trainer_pids(self._root)), signal.SIGKILL)
            self.killed.append(step)


def trainer_pids(root: Path) -> list[int]:
    """The trainers' service processes: they log to the run's `trainer-…` files."""
    logs = str((root / "logs" / "trainer-").resolve())
    found: list[int] = []
    for pid in sorted(descendants(os.getpid())):
        try:
            if os.readlink(f"/proc/{pid}/fd/1").startswith(logs):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1] if LONG else [0])
def test_a_killed_rank_changes_nothing(uninterrupted: Path, tmp_path: Path, seed: int) -> None:
    changes = {"steps": 5, "checkpoint": {"every": 2}}
    undisturbed = train_with_two(uninterrupted.parent, tmp_path / "undisturbed", **changes)
    folder = tmp_path / "disturbed"
    with Killer(folder / "run", [1, 3], seed) as killer:
        root = train_with_two(uninterrupted.parent, folder, **changes)
    assert killer.killed == [1, 3]
    assert load_run(root).events.count("trainers_lost") >= 1
    assert outcome(root) == outcome(undisturbed)
