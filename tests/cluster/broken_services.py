"""Services whose constructors do not come back."""

from __future__ import annotations

import os
import signal
from typing import Any

from seeker.cluster.objects import ServiceContext


class Exiting:
    """Exits at once."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        os._exit(7)


class Killed:
    """Is killed at once; with a marker file in its config only the first time."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        marker = config.get("marker")
        if marker is None or not os.path.exists(marker):
            if marker is not None:
                open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    def echo(self, value: Any) -> Any:
        return value
