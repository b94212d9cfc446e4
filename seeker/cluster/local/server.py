"""The embedded cluster: Frontend, object cache and scheduler of one machine, on the loopback interface only."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster import wire
from seeker.cluster.local import launch
from seeker.cluster.local.binding import ExecutorSettings
from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.local.devices import devices_of, found_devices
from seeker.cluster.local.directories import make_directory, remove_stale_directories, short_temporary_directory
from seeker.cluster.local.faults import make_scheduler
from seeker.cluster.local.frame_server import FrameServer
from seeker.cluster.local.frontend import Frontend
from seeker.cluster.local.guardian import Guardian
from seeker.cluster.local.logs import LogKeeper
from seeker.cluster.local.options import LOOPBACK, LocalSettings, capacity_of
from seeker.cluster.local.packages import Packages
from seeker.cluster.local.payloads import Shelf
from seeker.cluster.local.state import State


class LocalCluster:
    """An async context manager: endpoints are open inside, every process and file is gone after."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._root = Path()
        self._state = State()
        self._frames: str | None = None

    async def __aenter__(self) -> LocalCluster:
        async with AsyncExitStack() as stack:  # undone in reverse order, also when a later part fails
            directories = self._make_directories(stack)
            self._guardian = Guardian(directories)
            await self._guardian.start()
            stack.push_async_callback(self._guardian.stop)
            self._start_cache(stack, directories[-1])
            await self._start_frontend(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _make_directories(self, stack: AsyncExitStack) -> list[Path]:
        """The cluster's own, and one for spilled objects when they are wanted. Those of killed clusters go."""
        spill_dir = self._settings.spill_dir
        made: list[Path] = []
        for parent in (short_temporary_directory(), *([spill_dir.absolute()] if spill_dir else [])):
            remove_stale_directories(parent)
            directory = make_directory(parent)
            stack.callback(directory.remove)
            made.append(directory.path)
        self._root = made[0]
        return made

    def _start_cache(self, stack: AsyncExitStack, spill_directory: Path) -> None:
        limit_bytes = self._settings.object_memory_bytes
        self._cache = ObjectCache(shelf=Shelf(spill_directory, limit_bytes))
        threading.Thread(target=self._cache.serve, name="object-cache", daemon=True).start()

        async def stop() -> None:
            await asyncio.get_running_loop().run_in_executor(None, partial(self._cache.shutdown))

        stack.push_async_callback(stop)

    async def _start_frontend(self, stack: AsyncExitStack) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])  # its 4 MiB receive limit is the engine's
        self.port = self._server.add_insecure_port(f"{LOOPBACK}:0")
        self._executor_settings = self._shared_settings()
        stack.callback(asyncio.get_running_loop().create_task(self._logs.watch()).cancel)
        packages = Packages(self._cache, self._root / "packages", kept_by_name=self._settings.faults == "engine")
        faults, capacity = self._settings.faults, capacity_of(self._settings)
        self._scheduler = make_scheduler(faults, self._state, capacity, self._executor_settings, packages)
        self._register_template()
        frontend = Frontend(self._state, self._scheduler, events_on_streams=faults == "none")
        wire.frontend_grpc.add_FrontendServicer_to_server(frontend, self._server)
        await self._start_frames(stack, frontend)
        stack.push_async_callback(self._server.stop, grace=0.2)
        stack.push_async_callback(self._scheduler.stop)
        await self._server.start()

    async def _start_frames(self, stack: AsyncExitStack, frontend: Frontend) -> None:
        if self._settings.has_frames:
            self._frames = str(self._root / "frames.sock")
            frames = FrameServer(frontend, self._frames)
            await frames.start()
            stack.callback(frames.stop)

    def describe(self) -> dict[str, Any]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "cache_endpoint": self._cache.endpoint,
            "frames": self._frames,
            "pid": os.getpid(),
            "root": str(self._root),
            "node": self._scheduler.node,
            "log_dir": str(self._log_dir),
            "slots": self._settings.slots,
        }

    def _shared_settings(self) -> ExecutorSettings:
        self._log_dir = self._settings.log_dir or self._root / "logs"
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._logs = LogKeeper(self._log_dir)
        endpoints = {
            "FLAME_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "FLAME_CACHE_ENDPOINT": self._cache.endpoint,
        }
        if self._settings.memory_bytes is not None:  # what starters check their service's request against
            endpoints["SEEKER_MEMORY_BYTES"] = str(self._settings.memory_bytes)
        return ExecutorSettings(
            python=self._settings.python,
            root=self._root,
            logs=self._logs,
            node=socket.gethostname(),
            environment=endpoints,
            groups=self._guardian,
            direct_calls=self._settings.has_frames,
            devices=devices_of(capacity_of(self._settings).gpu, found_devices()),
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
