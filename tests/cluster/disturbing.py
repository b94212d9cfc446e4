"""What goes on beside a test on the same cluster: threads for as long as a with block lasts."""

from __future__ import annotations

import threading
from typing import Self

from seeker.cluster.client import ClusterSettings, gather, open_cluster

ECHO = "tests.cluster.services:Echo"
PAUSE_S = 4.0  # between visits, each of which starts six processes


class Disturbance:
    """`run` goes on until `over` is set at the block's end; what it raises is raised there."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.over.set()
        self._thread.join(180)
        if kind is None:
            assert not self._thread.is_alive(), f"{self} hangs"
            if self._error is not None:
                raise self._error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error

    def run(self) -> None:
        raise NotImplementedError


class Neighbour(Disturbance):
    """Another client that comes and goes, with more calls than executors; every other time it leaves in the middle."""

    def __init__(self, settings: ClusterSettings, may_lose: bool = False) -> None:
        """`may_lose`: its executors are killed, too; a dead one must not be released once this client is gone."""
        super().__init__()
        self.num_visits = 0
        self._settings = settings
        self._may_lose = may_lose
        self._release_s = 7200 if may_lose else 120

    def run(self) -> None:
        while not self.over.wait(PAUSE_S):
            with open_cluster(self._settings) as cluster:
                service = cluster.start(
                    "visit", ECHO, {}, "mem=64m", executors=3, release_s=7200 if self._may_lose else 120
                )
                calls = [service.call("sleep", 0.2, deadline_s=90, idempotent=True) for _ in range(6)]
                for call in gather(calls if self.num_visits % 2 else calls[:3], 120):
                    assert call.result() == 0.2
            assert self._may_lose or cluster.abandoned == []
            self.num_visits += 1
