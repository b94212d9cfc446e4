"""Drills: random kills under load. No call hangs or is lost without an answer, and nothing is left behind.

SEEKER_DRILL_ROUNDS sets the number of rounds: 20 by default, 200 in `make drill`.

1.  Executors, service processes, members of a gang and the guardian are killed while calls, a gang, an elastic service
    and objects are at work. After each round every call has ended in time with its own value or a typed error, those
    that may be done again with their value; no process is out of the cluster's sight.
2.  Memory and open files of driver and cluster stay within 10 % after the first rounds.
3.  At the end no process, socket or directory is left.
4.  The same with the real engine's faults, where killed executors stay, while another client comes and goes: their
    sessions are left behind, no stranger's answer is used, and a third client still gets executors.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from seeker.cluster.client import ClusterSettings, open_cluster
from tests.benchmarks.processes import Usage, usage_of
from tests.cluster.conftest import descendants, is_running, wait_until
from tests.cluster.disturbing import Neighbour
from tests.cluster.load import ECHO, SMALL, Load
from tests.cluster.served import served_cluster, settings_of
from tests.cluster.victims import await_no_orphans, kill_one

ROUNDS = int(os.environ.get("SEEKER_DRILL_ROUNDS", "20"))
ENGINE_ROUNDS = ROUNDS // 2 if ROUNDS <= 20 else 40  # each may leave slots behind for good
WARM_ROUNDS = 60 if ROUNDS > 60 else 5  # about 1,000 calls: the cluster keeps the last ones
MAX_KILLS = 2  # in a round, since a call is done again twice at most


def attack(rng: random.Random, cluster: int) -> Counter[str]:
    """A few kills at random moments of a round, and what they hit."""
    killed: Counter[str] = Counter()
    for _ in range(rng.randint(1, MAX_KILLS)):
        time.sleep(rng.random() * 0.5)
        killed[kill_one(rng, cluster)] += 1
    return killed


@pytest.mark.drill
@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_random_kills() -> None:
    rng = random.Random(7)
    killed: Counter[str] = Counter()
    usages: list[dict[str, Usage]] = []
    with open_cluster(ClusterSettings()) as cluster:
        process, root = cluster._embedded.process, cluster._embedded.root
        assert root is not None
        load = Load(cluster)
        for number in range(ROUNDS):
            work = load.round()
            killed += attack(rng, process.pid)
            assert work.finish() == [], f"round {number}"
            await_no_orphans(process.pid, root)
            usages.append({"driver": usage_of(os.getpid()), "cluster": usage_of(process.pid)})
        family = descendants(process.pid)
    print(f"{ROUNDS} rounds: killed {dict(killed)}, outcomes {dict(load.outcomes)}, {load.retries} retries")
    wait_until(lambda: not any(map(is_running, family)), 5, "every process ends")
    assert not root.exists()
    check_flat(usages)


def check_flat(usages: list[dict[str, Usage]]) -> None:
    steps = usages[:: len(usages) // 10 or 1]
    print("MB of the cluster:", [round(each["cluster"].resident_bytes / 1e6) for each in steps])
    for who, before in usages[min(WARM_ROUNDS, len(usages) - 1)].items():
        now = usages[-1][who]
        print(f"{who}: {before} after {WARM_ROUNDS} rounds, {now} at the end")
        assert now.resident_bytes < before.resident_bytes * 1.1, who
        assert now.num_open <= before.num_open * 1.1 + 8, who


@pytest.mark.drill
@pytest.mark.timeout(120 + 60 * ENGINE_ROUNDS)
def test_random_kills_with_the_engines_faults() -> None:
    rng = random.Random(11)
    killed: Counter[str] = Counter()
    with served_cluster("--faults", "engine", "--slots", "300", "--memory", "64g") as served:
        settings = settings_of(served, run_id="attacked")
        with open_cluster(settings) as cluster, Neighbour(settings, may_lose=True) as neighbour:
            load = Load(cluster)
            for number in range(ENGINE_ROUNDS):
                work = load.round()
                killed += attack(rng, served["pid"])
                assert work.finish() == [], f"round {number}"
                await_no_orphans(served["pid"], Path(served["root"]))
        with open_cluster(settings_of(served, run_id="other")) as other:
            assert other.start("after", ECHO, {}, SMALL).call("echo", 1, deadline_s=30).result() == 1
            assert other.abandoned == []
        print(f"{ENGINE_ROUNDS} rounds: killed {dict(killed)}, outcomes {dict(load.outcomes)}, {load.retries} retries")
        print(f"{len(cluster.abandoned)} sessions were left, {neighbour.num_visits} visits beside")
        family = descendants(served["pid"])
    wait_until(lambda: not any(map(is_running, family)), 10, "every process ends")
    assert not Path(served["root"]).exists()
