"""A rollout service with faults, one for each file in the folder `faults` beside the policy.

`raise-once`: the index raises. `kill-child-once`: the service process dies by kill -9. `kill-executor-once`: the
executor that Flame started dies by kill -9. Each fault strikes one training call, then its file is gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seeker.cluster.objects import ServiceContext
from seeker.services.rollout import RolloutService
from seeker.tools import SearchTool


class BrokenIndex:
    """A retriever that raises."""

    def search(self, query: str, k: int) -> list[Any]:
        raise ConnectionResetError(f"no index answers {query!r}")


class FaultyRolloutService(RolloutService):
    """The rollout service; a random policy never searches, so the faults strike before the sampling."""

    def __init__(self, config: Mapping[str, Any], context: ServiceContext) -> None:
        super().__init__(config, context)
        self._faults = Path(config["run"]["policy"]["path"]).parent / "faults"

    def rollout(self, *args: Any, group_size: int, **kwargs: Any) -> dict[str, Any]:
        if group_size > 1:
            self._strike()
        return super().rollout(*args, group_size=group_size, **kwargs)

    def _strike(self) -> None:
        if self._take("raise-once"):
            SearchTool(BrokenIndex(), 1)("Ama")
        if self._take("kill-child-once"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._take("kill-executor-once"):
            os.kill(os.getppid(), signal.SIGKILL)

    def _take(self, name: str) -> bool:
        """True for the one call that gets to remove the file."""
        try:
            (self._faults / name).unlink()
        except FileNotFoundError:
            return False
        return True
