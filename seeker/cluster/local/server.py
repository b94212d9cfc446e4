"""The embedded cluster: Frontend, object cache and scheduler of one machine, on the loopback interface only."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local import launch
from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.local.executor import Executor, ExecutorSettings
from seeker.cluster.local.frontend import Frontend
from seeker.cluster.local.options import LocalSettings, capacity_of
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.scheduler import Scheduler
from seeker.cluster.local.state import State

_ROOT_PREFIX = "seeker-"
_LOCK_NAME = "lock"


class LocalCluster:
    """An async context manager: endpoints are open inside, every process and file is gone after."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._root = Path()
        self._state = State()

    async def __aenter__(self) -> LocalCluster:
        remove_stale_roots()
        self._root, self._lock = _make_root()
        self._cache = ObjectCache()
        self._packages = Packages(self._cache, self._root / "packages")
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])  # its 4 MiB receive limit is the engine's
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        capacity = capacity_of(self._settings)
        self._executor_settings = self._shared_settings()
        self._scheduler = Scheduler(self._state, capacity, partial(Executor, self._executor_settings, self._packages))
        self._register_template()
        wire.frontend_grpc.add_FrontendServicer_to_server(Frontend(self._state, self._scheduler), self._server)
        threading.Thread(target=self._cache.serve, name="object-cache", daemon=True).start()
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scheduler.stop()
        await self._server.stop(grace=0.2)
        await asyncio.get_running_loop().run_in_executor(None, partial(self._cache.shutdown))
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)

    def describe(self) -> dict[str, Any]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "cache_endpoint": self._cache.endpoint,
            "pid": os.getpid(),
            "root": str(self._root),
            "node": self._scheduler.node,
            "log_dir": str(self._executor_settings.log_dir),
            "slots": self._settings.slots,
        }

    def _shared_settings(self) -> ExecutorSettings:
        log_dir = self._settings.log_dir or self._root / "logs"
        log_dir.mkdir(parents=True, exist_ok=True)
        endpoints = {
            "FLAME_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "FLAME_CACHE_ENDPOINT": self._cache.endpoint,
        }
        return ExecutorSettings(
            python=self._settings.python,
            root=self._root,
            log_dir=log_dir,
            node=socket.gethostname(),
            environment=endpoints,
            socket_deadline_s=self._settings.socket_deadline_s,
        )

    def _register_template(self) -> None:
        spec = wire.types.ApplicationSpec(
            shim=0,
            description="Runs Python functions, classes and objects",
            command=launch.RUNNER_COMMAND,
            arguments=launch.RUNNER_ARGUMENTS,
            installer="python",
        )
        self._state.register(launch.RUNNER_TEMPLATE, spec)


def _short_temporary_directory() -> str:
    """Unix socket paths end at 104 characters, so a long TMPDIR will not do."""
    return tempfile.gettempdir() if len(tempfile.gettempdir()) <= 40 else "/tmp"


def _make_root() -> tuple[Path, int]:
    """A private directory (mode 0700) and the descriptor of its lock, held as long as the cluster lives."""
    root = Path(tempfile.mkdtemp(prefix=_ROOT_PREFIX, dir=_short_temporary_directory()))
    staged = root / f"{_LOCK_NAME}.new"
    lock = os.open(staged, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    staged.rename(root / _LOCK_NAME)  # visible only once it is held
    return root, lock


def remove_stale_roots() -> None:
    """Remove the directories of clusters that were killed: ours, and their lock is free."""
    for root in Path(_short_temporary_directory()).glob(f"{_ROOT_PREFIX}*"):
        path = root / _LOCK_NAME
        try:
            if root.stat().st_uid != os.getuid() or not path.exists():
                continue
            lock = os.open(path, os.O_RDWR)
        except OSError:  # it went away meanwhile, or is not ours to read
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
        except BlockingIOError:
            continue  # held: that cluster is alive
        finally:
            os.close(lock)
