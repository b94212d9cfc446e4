"""Scripted services that the tests run in executors."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from seeker.cluster.objects import ObjectHandle, ServiceContext


class _Elsewhere:
    """Of a module that only this process has, as its reader finds out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("only_where_the_service_is",)


class Echo:
    """Answers with what it was asked, and misbehaves on request."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        self.config = config
        self.context = context
        self.num_calls = 0

    def echo(self, value: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return (value, kwargs) if kwargs else value

    def about(self) -> dict[str, Any]:
        self.num_calls += 1
        return {
            "config": self.config,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "num_calls": self.num_calls,
            "executor": self.context.executor,
            "set_up_count": self.context.set_up_count,
            "prefix": self.context.prefix,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "python": sys.executable,
        }

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def elsewhere(self) -> object:
        return _Elsewhere()

    def kill_self(self, marker: str | None = None) -> str:
        """Dies at once; with a marker file only the first time."""
        if marker is None or not os.path.exists(marker):
            if marker is not None:
                open(marker, "w").close()
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    def kill_executor(self, marker: str) -> str:
        """Kills the Flame process above, the first time."""
        if not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(30)
        return "survived"

    def start_process(self, apart: bool = False) -> int:
        """A process of the service's own, which nobody ends; its id. `apart`: in a process group of its own."""
        return subprocess.Popen(["sleep", "600"], start_new_session=apart).pid

    def large(self, num_bytes: int) -> bytes:
        return bytes(num_bytes)

    def put(self, num_bytes: int) -> dict[str, Any]:
        return asdict(self.context.objects.put(self.context.prefix, bytes(num_bytes)))

    def read(self, handle: dict[str, Any]) -> int:
        return len(self.context.objects.get(ObjectHandle(**handle)))


class Broken:
    """Cannot be constructed."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        raise RuntimeError("no engine on this machine")


class Sleeper:
    """Never finishes its constructor."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        time.sleep(3600)

    def echo(self, value: Any) -> Any:
        return value
