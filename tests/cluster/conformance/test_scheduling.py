"""Which executors a session gets. What a real cluster leaves open is not asked for.

1.  A gang (minimum, maximum and batch the same) is allocated together, without a call.
2.  A request that no node meets is neither refused nor served, and holds nobody up; closing its session works.
3.  Processes are started for pending calls, up to the maximum and no further, where no idle ones are about.
"""

from __future__ import annotations

import time

import flamepy
import pytest

from tests.cluster.conformance.target import Target
from tests.cluster.conformance.waiting import executors_of, value_of, values_of, wait_until

BOUND = 4


def _bound(session: flamepy.Session) -> int:
    return [each.status.state for each in executors_of(session)].count(BOUND)


@pytest.mark.usefixtures("four_slots")
def test_a_gang(plain: str) -> None:  # 1
    gang = flamepy.create_session(plain, min_instances=2, max_instances=2, batch_size=2)
    wait_until(lambda: _bound(gang) >= 2, "both are there")
    assert values_of([gang.run(b"x") for _ in range(4)]) == [b"x"] * 4
    gang.close()


@pytest.mark.usefixtures("four_slots")
def test_who_waits_holds_nobody_up(target: Target, plain: str) -> None:  # 2
    capacity = sum(node.status.capacity.cpu for node in flamepy.list_nodes())
    wanted = flamepy.ResourceRequirement(cpu=capacity + 1, memory=2**20)
    waiting = flamepy.create_session(plain, max_instances=1, resreq=wanted)
    task = waiting.create_task(b"x")
    other = flamepy.create_session(plain, max_instances=1)
    assert value_of(other.run(b"served")) == b"served"
    other.close()
    if target.is_embedded:  # a real one lends idle executors of any size
        assert waiting.get_task(task.id).state == flamepy.TaskState.PENDING
        assert executors_of(waiting) == []
    waiting.close()
    assert flamepy.get_session(waiting.id).state == flamepy.SessionState.CLOSED


def test_up_to_the_maximum(target: Target, plain: str) -> None:  # 3
    session = flamepy.create_session(plain, max_instances=2)
    futures = [session.run(b"sleep 0.2") for _ in range(8)]
    most = 0
    while not all(future.done() for future in futures):
        most = max(most, len(executors_of(session)))
        time.sleep(0.02)
    assert values_of(futures) == [b"slept"] * 8
    assert most >= 1
    if target.is_embedded:  # a real one binds others' idle executors beyond the maximum
        assert most <= 2
    session.close()
