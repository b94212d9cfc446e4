"""What Flame instantiates: a class that cannot die, fail or hang.

A process that dies in a call, or a constructor that raises or hangs, bricks a real 0.6 cluster. So the constructor does
nothing, and the work happens in a child process that the first call starts and later calls find warm. A call's
deadline, the cancel object, the driver's lease or the child's death ends the call with its reason as data; the executor
lives on.
"""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

from . import node
from .host import Host


class Starter:
    """Answers every call with a dict: ``{"kind": "value", "value": pickle}`` or a failure with its reason.

    `SETUP` is filled in per session: name, target, config, prefix, resources, where code, objects and logs are.

    Example: ``Starter().call({"method": "echo", "arguments": pickle.dumps(((1,), {})), "seconds": 30.0})`` is
    ``{"kind": "value", "value": b"...", "executor": "5b2c...", "host": "node-a", "set_up_count": 1}``.
    """

    SETUP: ClassVar[dict[str, Any]] = {}
    EXECUTOR: ClassVar[str | None] = None  # in tests, where no Flame names it
    LOCK: ClassVar[Any] = threading.Lock()
    host: ClassVar[Host | None] = None  # made by the first call

    def __init__(self) -> None:
        """Nothing may fail here."""

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a method of the service, or one of our own (``@join``, ``@about``); see `running.Request`."""
        try:
            return self._made_host().call(request)
        except BaseException as error:  # the executor must not fail, whatever happens
            return {"kind": "starter", "message": f"{type(error).__name__}: {error}"}

    @classmethod
    def _made_host(cls) -> Host:
        with cls.LOCK:
            if cls.host is None:
                is_executor = "FLAME_INSTANCE_ENDPOINT" in os.environ
                cls.host = Host(cls.SETUP, cls.EXECUTOR or node.executor_id(), is_executor)
            return cls.host


def configured(setup: dict[str, Any], executor: str | None = None) -> type[Starter]:
    """The class that Flame instantiates for one session."""
    fields = {"SETUP": setup, "EXECUTOR": executor, "host": None, "LOCK": threading.Lock()}
    return type("Starter", (Starter,), fields)
