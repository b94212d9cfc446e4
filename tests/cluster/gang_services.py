"""A scripted member of a gang: it knows its rank, and misbehaves where a test asks for it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from seeker.cluster.objects import ServiceContext


class Member:
    """``config`` may hold ``{"set_up_s": 1.0}``, how long its constructor takes."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        time.sleep(config.get("set_up_s", 0.0))
        self.context = context
        self.num_calls = 0

    @property
    def rank(self) -> int:
        assert self.context.gang is not None
        return self.context.gang.rank

    def about(self) -> dict[str, Any]:
        gang = self.context.gang
        assert gang is not None
        self.num_calls += 1
        return {
            "rank": gang.rank,
            "world": gang.world,
            "generation": gang.generation,
            "executor": self.context.executor,
            "num_calls": self.num_calls,
            "pid": os.getpid(),
            "parent": os.getppid(),
        }

    def pause(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def die(self, rank: int, of: str = "service") -> None:
        """One rank's process ends; the others wait as in a collective."""
        if self.rank == rank:
            os.kill(os.getpid() if of == "service" else os.getppid(), signal.SIGKILL)
        time.sleep(60)

    def hang(self, rank: int) -> str:
        """One rank never comes back."""
        time.sleep(60 if self.rank == rank else 0)
        return "back"

    def fail(self, ranks: list[int]) -> int:
        """The named ranks raise; the others wait for them."""
        if self.rank in ranks:
            raise ValueError(f"rank {self.rank} does not like it")
        time.sleep(60)
        return self.rank
