"""The cluster's end of the socket at which our own executors take calls: a task's input there, its output back."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster.frames import REQUEST, FrameProtocol


class CallLine(FrameProtocol):
    """A line that is lost fails its calls as a lost gRPC connection does."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bytes]] = {}

    def call(self, task_input: bytes) -> asyncio.Future[bytes]:
        call: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if not self.is_connected:
            call.set_exception(_broken())
            return call
        number = next(self._numbers) & 0xFFFFFFFF
        self._calls[number] = call
        self.send(number, REQUEST, task_input)
        return call

    def arrived(self, number: int, kind: int, payload: bytes) -> None:
        call = self._calls.pop(number)
        if not call.done():  # it was cancelled meanwhile
            call.set_result(payload)

    def lost(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(_broken())
        self._calls.clear()


async def open_line(path: Path) -> CallLine | None:
    """None where the executor has no such socket: any other program than ours."""
    try:
        _, line = await asyncio.get_running_loop().create_unix_connection(CallLine, str(path))
    except OSError:
        return None
    return line


def _broken() -> Any:
    none = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the connection to the process was closed")
