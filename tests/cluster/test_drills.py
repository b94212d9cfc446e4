"""Drills: random kills under load. No call hangs or is lost without an answer, and nothing is left behind.

Run with ``pytest -m drill``; SEEKER_DRILL_ROUNDS sets the number of rounds (20 by default).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

from seeker.cluster.client import ClusterSettings, gather, open_cluster
from seeker.errors import ClusterError
from tests.cluster.conftest import descendants, is_running, wait_until

ROUNDS = int(os.environ.get("SEEKER_DRILL_ROUNDS", "20"))


@pytest.mark.drill
@pytest.mark.timeout(60 * ROUNDS)
def test_random_kills() -> None:
    rng = random.Random(7)
    num_lost = num_retries = 0
    with open_cluster(ClusterSettings()) as cluster:
        process = cluster._embedded.process
        service = cluster.start("drill", "tests.cluster.services:Echo", {}, resources="mem=64m", executors=2)
        for _ in range(ROUNDS):
            calls = [service.call("sleep", 0.05, deadline_s=60, idempotent=True) for _ in range(8)]
            for _ in range(rng.randint(1, 3)):
                time.sleep(rng.random() * 0.3)
                victims = sorted(descendants(process.pid))
                if victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(victims), signal.SIGKILL)
            for call in gather(calls, 90):
                num_retries += call.num_retries
                try:
                    assert call.result() == 0.05
                except ClusterError:
                    num_lost += 1
        family = descendants(process.pid)
        root = cluster._embedded.root
    print(f"{ROUNDS} rounds: {num_retries} retries, {num_lost} of {8 * ROUNDS} calls lost past the bound")
    assert num_lost <= ROUNDS
    wait_until(lambda: not any(map(is_running, family)), 5, "every process ends")
    assert root is not None
    assert not root.exists()
