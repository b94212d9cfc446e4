"""Many calls at once.

1.  Hundreds of calls from one thread all come back, each with its own answer, though ten threads bring the news.
2.  So do calls from many threads, and calls of several sessions at the same time.
3.  `concurrent.futures` waits for the futures as for its own.
4.  Calls of one session run at the same time in several processes when it may have them.
5.  Two calls never run at once in one process.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from itertools import pairwise

import flamepy
import pytest

from tests.cluster.conformance.waiting import LIMIT_S, executors_of, values_of, wait_until

BOUND = 4


def _inputs(count: int) -> list[bytes]:
    return [f"{number}".encode() for number in range(count)]


def test_hundreds_from_one_thread(shared: flamepy.Session) -> None:  # 1
    assert values_of([shared.run(data) for data in _inputs(400)]) == [b"<" + data for data in _inputs(400)]


def test_many_threads_and_sessions(plain: str, shared: flamepy.Session) -> None:  # 2
    other = flamepy.create_session(plain, common_data=b">", max_instances=1)

    def calls(thread: int) -> list[bytes]:
        session = (shared, other)[thread % 2]
        return values_of([session.run(f"{thread}.{number}".encode()) for number in range(20)])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(calls, range(8)))
    for thread, answer in enumerate(answers):
        assert answer == [f"{'<>'[thread % 2]}{thread}.{number}".encode() for number in range(20)]
    other.close()


def test_futures_are_futures(shared: flamepy.Session) -> None:  # 3
    futures = {shared.run(data): data for data in _inputs(30)}
    for future in as_completed(futures, timeout=LIMIT_S):
        assert future.result() == b"<" + futures[future]
    more = [shared.run(data) for data in _inputs(5)]
    done, outstanding = wait(more, timeout=LIMIT_S)
    assert (len(done), len(outstanding)) == (5, 0)
    failing = shared.run(b"fail")
    assert isinstance(failing.exception(timeout=LIMIT_S), flamepy.FlameError)


@pytest.mark.usefixtures("two_slots")
def test_side_by_side_in_several_processes(plain: str) -> None:  # 4, 5
    session = flamepy.create_session(plain, min_instances=2, max_instances=2)
    wait_until(lambda: [each.status.state for each in executors_of(session)].count(BOUND) >= 2, "two executors bound")
    spans = [json.loads(answer) for answer in values_of([session.run(b"span 0.3") for _ in range(6)])]
    by_process: dict[int, list[tuple[float, float]]] = {}
    for process, start, end in spans:
        by_process.setdefault(process, []).append((start, end))
    assert len(by_process) >= 2
    for times in by_process.values():
        ordered = sorted(times)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    session.close()
